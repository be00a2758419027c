"""Scripted text: arithmetic problems, JSON records, and ChatML dialogues with and without a thinking block.

Everything here is generated from the templates below with a fixed seed.
"""

import json
import random

NAMES = (
    "Ada Ben Carla David Elif Farid Greta Hugo Ines Jonas Kira Leo Maya Nils Olga Pedro Quinn Rosa Sami Tara Umar Vera "
    "Wim Xenia Yusuf Zoe Anton Bea Chidi Dora Emil Fatima Goran Hana Ivo Jana Karim Lena Marco Nora"
).split()
THINGS = (
    "apples pencils stamps books marbles tickets coins bricks cups shirts plates lemons stones cards boxes seeds bolts "
    "candles ribbons bottles carrots kites lamps maps nails"
).split()
CITIES = (
    "Oslo Lima Cairo Quito Delhi Porto Turin Lagos Osaka Perth Riga Sofia Tunis Vienna Accra Bergen Dakar Hanoi".split()
)
COLOURS = "red green blue black white orange purple yellow silver brown".split()
WORDS = (
    "river stone cloud lamp garden window bridge copper maple winter signal harbour pocket velvet thunder basket "
    "ladder mirror canyon pepper rocket saddle timber violet walnut anchor button candle dragon engine falcon "
    "guitar hammer island jacket kettle lemon magnet needle orchid pillow quartz ribbon spider ticket umbrella valley "
    "wagon zebra"
).split()
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a careful assistant. Answer briefly.",
    "You write short and correct programs.",
    "Answer in plain English.",
)


def arithmetic_problem(rng):
    """Returns (question, list of steps, answer)."""
    a, b = rng.sample(NAMES, 2)
    thing = rng.choice(THINGS)
    kind = rng.randrange(8)
    if kind == 0:
        x, y, z = rng.randint(12, 95), rng.randint(3, 40), rng.randint(2, 30)
        question = (
            f"{a} has {x} {thing}. {b} gives {a} {y} more, and {a} loses {z} of them. "
            f"How many {thing} does {a} have now?"
        )
        return question, [f"{x} + {y} = {x + y}", f"{x + y} - {z} = {x + y - z}"], x + y - z
    if kind == 1:
        n, per, price = rng.randint(2, 12), rng.randint(2, 12), rng.randint(2, 9)
        question = (
            f"{a} buys {n} boxes with {per} {thing} each. Every one costs {price} euros. What does {a} pay in total?"
        )
        return question, [f"{n} * {per} = {n * per}", f"{n * per} * {price} = {n * per * price}"], n * per * price
    if kind == 2:
        people, each, rest = rng.randint(3, 12), rng.randint(3, 15), rng.randint(0, 2)
        total = people * each + rest
        question = (
            f"{a} shares {total} {thing} equally among {people} people. "
            f"How many does each person get, and how many are left?"
        )
        steps = [f"{total} / {people} = {each} remainder {rest}", f"{people} * {each} = {people * each}"]
        steps.append(f"{total} - {people * each} = {rest}")
        return question, steps, f"{each} each and {rest} left"
    if kind == 3:
        speed, hours, pause = rng.randint(4, 90), rng.randint(2, 9), rng.randint(3, 40)
        far = speed * hours
        question = (
            f"A bus drives from {rng.choice(CITIES)} for {hours} hours at {speed} km per hour "
            f"and then {pause} km more. How far does it go?"
        )
        return question, [f"{speed} * {hours} = {far}", f"{far} + {pause} = {far + pause}"], f"{far + pause} km"
    if kind == 4:
        x, y = rng.randint(101, 989), rng.randint(101, 989)
        return f"What is {x} + {y}?", [f"{x} + {y} = {x + y}"], x + y
    if kind == 5:
        x, y = rng.randint(400, 999), rng.randint(11, 399)
        return f"What is {x} - {y}?", [f"{x} - {y} = {x - y}"], x - y
    if kind == 6:
        x, y = rng.randint(11, 99), rng.randint(3, 19)
        tens, ones = x // 10 * 10, x % 10
        steps = [f"{tens} * {y} = {tens * y}", f"{ones} * {y} = {ones * y}", f"{tens * y} + {ones * y} = {x * y}"]
        return f"What is {x} * {y}?", steps, x * y
    start, add, times = rng.randint(2, 30), rng.randint(2, 20), rng.randint(3, 6)
    steps, value = [], start
    for _ in range(times):
        steps.append(f"{value} + {add} = {value + add}")
        value += add
    return (
        f"{a} starts with {start} {thing} and gets {add} more every day for {times} days. How many are there then?",
        steps,
        value,
    )


def arithmetic_document(rng):
    parts = []
    for _ in range(rng.randint(6, 14)):
        question, steps, answer = arithmetic_problem(rng)
        parts.append(f"Question: {question}\n" + "".join(f"Step: {step}\n" for step in steps) + f"Answer: {answer}\n")
    return "\n".join(parts)


def person(rng):
    name = rng.choice(NAMES)
    return {
        "id": rng.randint(1000, 99999),
        "name": name,
        "age": rng.randint(18, 80),
        "city": rng.choice(CITIES),
        "email": f"{name.lower()}{rng.randint(1, 99)}@example.org",
        "tags": rng.sample(WORDS, rng.randint(1, 4)),
        "active": rng.random() < 0.6,
    }


def order(rng):
    lines = [
        {
            "item": rng.choice(THINGS),
            "colour": rng.choice(COLOURS),
            "count": rng.randint(1, 30),
            "price": rng.randint(100, 9999) / 100,
        }
        for _ in range(rng.randint(1, 5))
    ]
    total = round(sum(line["count"] * line["price"] for line in lines), 2)
    return {
        "order": f"{rng.choice('ABCDEFGH')}-{rng.randint(10000, 99999)}",
        "customer": person(rng)["name"],
        "lines": lines,
        "total": total,
    }


def reading(rng):
    start = rng.randint(100, 300)
    return {
        "station": rng.choice(CITIES),
        "unit": rng.choice(["celsius", "kelvin", "percent", "hectopascal"]),
        "values": [start + rng.randint(-20, 20) for _ in range(rng.randint(4, 12))],
        "quality": rng.choice(["good", "fair", "poor", None]),
    }


def settings(rng):
    return {
        "service": rng.choice(WORDS),
        "listen": {
            "host": f"10.{rng.randint(0, 255)}.{rng.randint(0, 255)}.{rng.randint(1, 254)}",
            "port": rng.randint(1024, 65000),
        },
        "limits": {
            "workers": rng.randint(1, 64),
            "timeout_ms": rng.choice([100, 250, 500, 1000, 5000]),
            "retries": rng.randint(0, 5),
        },
        "features": {rng.choice(WORDS): rng.random() < 0.5 for _ in range(rng.randint(1, 5))},
    }


def json_document(rng):
    make = rng.choice([person, order, reading, settings])
    records = [make(rng) for _ in range(rng.randint(3, 12))]
    return json.dumps(records, indent=rng.choice([2, 2, 4])) + "\n"


# Programming tasks: (request, code). {f} is the function's name, {x} and {y} are variable names.
PROGRAMS = (
    (
        "adds up the even numbers of a list",
        "def {f}({x}):\n"
        "    total = 0\n"
        "    for {y} in {x}:\n"
        "        if {y} % 2 == 0:\n"
        "            total += {y}\n"
        "    return total\n",
    ),
    (
        "returns the largest value of a list",
        "def {f}({x}):\n"
        "    best = {x}[0]\n"
        "    for {y} in {x}[1:]:\n"
        "        if {y} > best:\n"
        "            best = {y}\n"
        "    return best\n",
    ),
    (
        "counts how often each word occurs",
        "def {f}({x}):\n"
        "    counts = {{}}\n"
        "    for {y} in {x}.split():\n"
        "        counts[{y}] = counts.get({y}, 0) + 1\n"
        "    return counts\n",
    ),
    (
        "reverses a string",
        "def {f}({x}):\n    return {x}[::-1]\n",
    ),
    (
        "checks whether a number is prime",
        "def {f}({x}):\n"
        "    if {x} < 2:\n"
        "        return False\n"
        "    {y} = 2\n"
        "    while {y} * {y} <= {x}:\n"
        "        if {x} % {y} == 0:\n"
        "            return False\n"
        "        {y} += 1\n"
        "    return True\n",
    ),
    (
        "computes the greatest common divisor",
        "def {f}({x}, {y}):\n    while {y}:\n        {x}, {y} = {y}, {x} % {y}\n    return {x}\n",
    ),
    (
        "computes a factorial",
        "def {f}({x}):\n    result = 1\n    for {y} in range(2, {x} + 1):\n        result *= {y}\n    return result\n",
    ),
    (
        "returns the first Fibonacci numbers",
        "def {f}({x}):\n"
        "    values = [0, 1]\n"
        "    while len(values) < {x}:\n"
        "        values.append(values[-1] + values[-2])\n"
        "    return values[:{x}]\n",
    ),
    (
        "removes duplicates but keeps the order",
        "def {f}({x}):\n"
        "    seen = set()\n"
        "    result = []\n"
        "    for {y} in {x}:\n"
        "        if {y} not in seen:\n"
        "            seen.add({y})\n"
        "            result.append({y})\n"
        "    return result\n",
    ),
    (
        "finds a value in a sorted list by bisection",
        "def {f}({x}, {y}):\n"
        "    low, high = 0, len({x}) - 1\n"
        "    while low <= high:\n"
        "        middle = (low + high) // 2\n"
        "        if {x}[middle] == {y}:\n"
        "            return middle\n"
        "        if {x}[middle] < {y}:\n"
        "            low = middle + 1\n"
        "        else:\n"
        "            high = middle - 1\n"
        "    return -1\n",
    ),
    (
        "flattens a list of lists",
        "def {f}({x}):\n    return [{y} for inner in {x} for {y} in inner]\n",
    ),
    (
        "computes the mean of a list",
        "def {f}({x}):\n    if not {x}:\n        return 0.0\n    return sum({x}) / len({x})\n",
    ),
    (
        "tests whether a text is a palindrome",
        "def {f}({x}):\n    {y} = [c.lower() for c in {x} if c.isalnum()]\n    return {y} == {y}[::-1]\n",
    ),
    (
        "reads the lines of a file",
        'def {f}({x}):\n    with open({x}, encoding="utf-8") as {y}:\n        return [line.rstrip() for line in {y}]\n',
    ),
    (
        "merges two dictionaries",
        "def {f}({x}, {y}):\n    result = dict({x})\n    result.update({y})\n    return result\n",
    ),
    (
        "splits a list into chunks",
        "def {f}({x}, {y}):\n    return [{x}[i : i + {y}] for i in range(0, len({x}), {y})]\n",
    ),
    (
        "transposes a matrix",
        "def {f}({x}):\n    return [list({y}) for {y} in zip(*{x})]\n",
    ),
    (
        "sorts a list with insertion sort",
        "def {f}({x}):\n"
        "    for i in range(1, len({x})):\n"
        "        {y} = {x}[i]\n"
        "        j = i - 1\n"
        "        while j >= 0 and {x}[j] > {y}:\n"
        "            {x}[j + 1] = {x}[j]\n"
        "            j -= 1\n"
        "        {x}[j + 1] = {y}\n"
        "    return {x}\n",
    ),
    (
        "counts the vowels of a text",
        'def {f}({x}):\n    return sum(1 for {y} in {x}.lower() if {y} in "aeiou")\n',
    ),
    (
        "converts a temperature from Celsius to Fahrenheit",
        "def {f}({x}):\n    return {x} * 9 / 5 + 32\n",
    ),
)
VARIABLES = "values items data numbers text source records entries series inputs".split()
INNER = "value item part entry number word element piece".split()

FACTS = (
    (
        "a list in Python",
        "A list is an ordered and changeable sequence. You can append, insert and remove elements, and you "
        "reach them by their index, which starts at zero.",
    ),
    (
        "a tuple in Python",
        "A tuple is an ordered sequence that cannot be changed after it was made. Because it is immutable, it"
        " can be used as a key of a dictionary.",
    ),
    (
        "a dictionary in Python",
        "A dictionary maps keys to values. Keys must be hashable, every key occurs once, and looking up a key"
        " takes about constant time.",
    ),
    (
        "a set in Python",
        "A set holds distinct hashable elements without an order. It supports union, intersection and "
        "difference, and membership tests are fast.",
    ),
    (
        "a generator in Python",
        "A generator is a function that yields values one at a time. It keeps its local state between the "
        "values, so large sequences need little memory.",
    ),
    (
        "a decorator in Python",
        "A decorator is a callable that takes a function and returns a replacement for it. It is written with"
        " an at sign above the definition.",
    ),
    (
        "a context manager in Python",
        "A context manager sets something up and tears it down again. The with statement calls its enter "
        "method first and its exit method at the end, also after an error.",
    ),
    (
        "a reference in C++",
        "A reference is another name for an existing object. It must be bound when it is declared, and it "
        "cannot be bound to another object later.",
    ),
    (
        "a pointer in C++",
        "A pointer holds the address of an object. It may be null, it can be changed to point to another "
        "object, and it must be dereferenced to reach the object.",
    ),
    (
        "a template in C++",
        "A template describes a family of classes or functions. The compiler makes a concrete version for "
        "each set of arguments that the program uses.",
    ),
    (
        "a destructor in C++",
        "A destructor runs when the lifetime of an object ends. It releases what the object owns, for example"
        " memory, files or locks.",
    ),
    (
        "a unique pointer in C++",
        "A unique pointer owns one object and deletes it at the end of its own lifetime. It can be moved but "
        "not copied.",
    ),
    (
        "a hash table",
        "A hash table stores entries in buckets that are chosen by a hash of the key. With a good hash, "
        "finding an entry takes constant time on average.",
    ),
    (
        "binary search",
        "Binary search looks for a value in a sorted sequence. Each step compares with the middle element and"
        " drops the half that cannot hold the value.",
    ),
    (
        "a stack",
        "A stack is a collection where the last element that was pushed is the first one that is popped. "
        "Function calls use a stack for their local variables.",
    ),
    (
        "a queue",
        "A queue is a collection where elements leave in the order in which they came. It is used for tasks "
        "that wait to be worked on.",
    ),
    (
        "JSON",
        "JSON is a text format for data. It has objects, arrays, strings, numbers, true, false and null, and "
        "almost every language can read it.",
    ),
    (
        "a version control system",
        "A version control system records the changes of files over time. It lets several people work "
        "together and lets you return to an earlier state.",
    ),
    (
        "a unit test",
        "A unit test checks one small part of a program. It prepares an input, runs the part and compares the"
        " result with what was expected.",
    ),
    (
        "recursion",
        "Recursion means that a function calls itself with a smaller problem. A base case ends the chain, and"
        " the results are combined on the way back.",
    ),
)


def fill_program(rng):
    request, code = rng.choice(PROGRAMS)
    name = f"{rng.choice(['get', 'make', 'find', 'compute', 'do', 'run'])}_{rng.choice(WORDS)}"
    return request, name, code.format(f=name, x=rng.choice(VARIABLES), y=rng.choice(INNER))


def turn(rng):
    """Returns (user text, reasoning, answer)."""
    kind = rng.randrange(6)
    if kind == 0:
        question, steps, answer = arithmetic_problem(rng)
        reasoning = "I work this out step by step.\n" + "\n".join(steps) + f"\nSo the result is {answer}."
        return question, reasoning, f"The answer is {answer}."
    if kind == 1:
        request, name, code = fill_program(rng)
        user = rng.choice(
            [
                "Write a Python function `{0}` that {1}.",
                "Please write {0}, a Python function that {1}.",
                "I need a function called {0} which {1}.",
            ]
        )
        reasoning = (
            f"The user wants a Python function called {name} that {request}. A short and plain version is enough."
        )
        return user.format(name, request), reasoning, f"Here is a function that {request}:\n\n```python\n{code}```"
    if kind == 2:
        record = rng.choice([person, settings, reading])(rng)
        flat = {key: value for key, value in record.items() if not isinstance(value, dict)}
        listing = ", ".join(f"{key} is {json.dumps(value)}" for key, value in flat.items())
        reasoning = f"There are {len(flat)} fields: " + ", ".join(flat) + ". I keep their order and their types."
        return f"Turn this into JSON: {listing}.", reasoning, f"```json\n{json.dumps(flat, indent=2)}\n```"
    if kind == 3:
        words = rng.sample(WORDS, rng.randint(4, 8))
        ordered = sorted(words)
        reasoning = "I go through the first letters.\n" + "\n".join(f"{word[0]}: {word}" for word in ordered)
        return f"Sort these words: {', '.join(words)}.", reasoning, ", ".join(ordered)
    if kind == 4:
        subject, fact = rng.choice(FACTS)
        user = rng.choice(
            ["What is {0}?", "Explain {0}.", "Can you tell me what {0} is?", "Please describe {0} in a few words."]
        ).format(subject)
        return user, f"The question is about {subject}. I give a short definition and one property.", fact
    words = rng.sample(WORDS, rng.randint(3, 7))
    longest = max(words, key=len)
    reasoning = "I count the letters.\n" + "\n".join(f"{word}: {len(word)}" for word in words)
    return (
        f"Which of these words is the longest: {', '.join(words)}?",
        reasoning,
        f"The longest word is {longest} with {len(longest)} letters.",
    )


def dialogue(rng):
    """ChatML text; the last answer has a thinking block, which is empty when thinking is off."""
    thinking = rng.random() < 0.5
    parts = []
    if rng.random() < 0.5:
        parts.append(f"<|im_start|>system\n{rng.choice(SYSTEM_PROMPTS)}<|im_end|>\n")
    count = rng.choice([1, 1, 1, 2, 2, 3])
    for index in range(count):
        user, reasoning, answer = turn(rng)
        parts.append(f"<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n")
        if index == count - 1:
            parts.append(f"<think>\n{reasoning}\n</think>\n\n" if thinking else "<think>\n\n</think>\n\n")
        parts.append(f"{answer}<|im_end|>\n")
    return "".join(parts)


def documents(seed=20261130):
    """Yields (domain, text)."""
    rng = random.Random(seed)
    for _ in range(4200):
        yield "arithmetic", arithmetic_document(rng)
    for _ in range(2500):
        yield "json", json_document(rng)
    for _ in range(12000):
        yield "chat", dialogue(rng)
