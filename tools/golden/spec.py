"""The mathematics as the project's specification words it, in float64 numpy, written without looking things up in a
reference: a check that specification and dumps say the same, a measure of the dumps' own float32 noise, and a proof
that the shapes catch mistakes (each named mistake must move the stage it touches far beyond the parity bound).

Every function takes one stage's own input from the dump. Used by check.py; makes no golden file.
"""

from __future__ import annotations

import numpy as np


def silu(x):
    return x / (1.0 + np.exp(-x))


def sigmoid(x):
    return 1.0 / (1.0 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rms(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rope(x, positions, theta, dims, mistake):
    """x [T, heads, D]; the first ``dims`` are rotated, pair (i, i + dims/2)."""
    half = dims // 2
    angle = positions[:, None] * theta ** (-2.0 * np.arange(half) / dims)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    out = x.copy()
    if mistake == "rope pairs interleaved":
        a, b = x[..., 0:dims:2], x[..., 1:dims:2]
        out[..., 0:dims:2], out[..., 1:dims:2] = a * cos - b * sin, b * cos + a * sin
        return out
    a, b = x[..., :half], x[..., half:dims]
    out[..., :half], out[..., half:dims] = a * cos - b * sin, b * cos + a * sin
    return out


def attend(q, k, v, visible, mistake=None):
    group = q.shape[1] // k.shape[1]
    out = np.empty(q.shape[:2] + v.shape[2:])
    for head in range(q.shape[1]):
        kv = head % k.shape[1] if mistake == "KV head h % Nkv" else head // group
        scores = q[:, head] @ k[:, kv].T * q.shape[-1] ** -0.5
        out[:, head] = softmax(np.where(visible, scores, -np.inf)) @ v[:, kv]
    return out


TARGET_MISTAKES = {
    "full_attention": (
        "rope pairs interleaved",
        "rope on all dims",
        "KV head h % Nkv",
        "gate as second half",
        "norm weights plain",
        "no output gate",
    ),
    "linear_attention": (
        "key head j % Hk",
        "decay after the read",
        "query not scaled",
        "taps reversed",
        "gated norm as 1 + w",
        "norm weights plain",
        "A_log rounded to bf16",
        "state transposed",
    ),
}


MIXTURE_MISTAKES = (
    "experts not renormalised",
    "experts weighted equally",
    "one expert fewer",
    "expert gate and up swapped",
    "no gate on the shared expert",
)


class Target:
    """``weights``: float64 arrays under names without the model prefix; norms as the factor that multiplies."""

    def __init__(self, text: dict, kinds: list[str], weights: dict[str, np.ndarray]):
        self.text, self.kinds, self.weights = text, kinds, weights
        self.eps = text["rms_norm_eps"]

    def layer(self, index: int, h: np.ndarray, mistake: str | None = None) -> dict[str, np.ndarray]:
        w = {
            name.removeprefix(f"layers.{index}."): value
            for name, value in self.weights.items()
            if name.startswith(f"layers.{index}.")
        }
        if mistake == "norm weights plain":
            w = {name: value - 1.0 if self.shifted(name) else value for name, value in w.items()}
        x = rms(h, w["input_layernorm.weight"], self.eps)
        mix = self.attention if self.kinds[index] == "full_attention" else self.delta_net
        result = mix(x, w, mistake)
        h = h + result["mixer"]
        x = rms(h, w["post_attention_layernorm.weight"], self.eps)
        result["hidden"] = h + (self.mixture(x, w, mistake) if "mlp.gate.weight" in w else self.dense(x, w, "mlp."))
        return result

    @staticmethod
    def dense(x, w, base):
        gate, up = x @ w[base + "gate_proj.weight"].T, x @ w[base + "up_proj.weight"].T
        return (silu(gate) * up) @ w[base + "down_proj.weight"].T

    def mixture(self, x, w, mistake):
        count = self.text["num_experts_per_tok"] - (mistake == "one expert fewer")
        share = softmax(x @ w["mlp.gate.weight"].T)
        chosen = np.argsort(-share, axis=-1, kind="stable")[:, :count]
        weight = np.take_along_axis(share, chosen, -1)
        if mistake != "experts not renormalised":
            weight = weight / weight.sum(-1, keepdims=True)
        weight = np.full_like(weight, 1.0 / count) if mistake == "experts weighted equally" else weight
        out = np.zeros_like(x)
        for row, (experts, shares) in enumerate(zip(chosen, weight, strict=True)):
            for expert, factor in zip(experts, shares, strict=True):
                gate, up = np.split(w["mlp.experts.gate_up_proj"][expert] @ x[row], 2)
                if mistake == "expert gate and up swapped":
                    gate, up = up, gate
                out[row] += factor * (w["mlp.experts.down_proj"][expert] @ (silu(gate) * up))
        gate = sigmoid(x @ w["mlp.shared_expert_gate.weight"].T)
        gate = np.ones_like(gate) if mistake == "no gate on the shared expert" else gate
        return out + gate * self.dense(x, w, "mlp.shared_expert.")

    @staticmethod
    def shifted(name: str) -> bool:
        return name.endswith("norm.weight") and "linear_attn" not in name

    def attention(self, x, w, mistake):
        rows, head, rope_config = len(x), self.text["head_dim"], self.text["rope_parameters"]
        qg = (x @ w["self_attn.q_proj.weight"].T).reshape(rows, -1, 2 * head)
        q, gate = qg[..., :head], qg[..., head:]
        if mistake == "gate as second half":
            q, gate = np.split(qg.reshape(rows, 2, -1, head), 2, axis=1)
            q, gate = q[:, 0], gate[:, 0]
        k = (x @ w["self_attn.k_proj.weight"].T).reshape(rows, -1, head)
        v = (x @ w["self_attn.v_proj.weight"].T).reshape(rows, -1, head)
        dims = head if mistake == "rope on all dims" else int(head * rope_config["partial_rotary_factor"])
        turn = (np.arange(rows, dtype=np.float64), float(rope_config["rope_theta"]), dims, mistake)
        q = rope(rms(q, w["self_attn.q_norm.weight"], self.eps), *turn)
        k = rope(rms(k, w["self_attn.k_norm.weight"], self.eps), *turn)
        o = attend(q, k, v, np.tril(np.ones((rows, rows), bool)), mistake)
        if mistake != "no output gate":
            o = o * sigmoid(gate)
        return {"mixer": o.reshape(rows, -1) @ w["self_attn.o_proj.weight"].T, "k": k, "v": v}

    def delta_net(self, x, w, mistake):
        text, rows = self.text, len(x)
        hk, hv = text["linear_num_key_heads"], text["linear_num_value_heads"]
        dk, dv = text["linear_key_head_dim"], text["linear_value_head_dim"]
        qkv = x @ w["linear_attn.in_proj_qkv.weight"].T
        kernel = w["linear_attn.conv1d.weight"].reshape(qkv.shape[1], -1)
        taps = kernel.shape[1]
        kernel = kernel[:, ::-1] if mistake == "taps reversed" else kernel
        padded = np.concatenate([np.zeros((taps - 1, qkv.shape[1])), qkv])
        u = silu(sum(kernel[:, j] * padded[j : j + rows] for j in range(taps)))
        q, k, v = np.split(u, [hk * dk, 2 * hk * dk], axis=1)
        q, k, v = q.reshape(rows, hk, dk), k.reshape(rows, hk, dk), v.reshape(rows, hv, dv)
        q = q / np.sqrt((q * q).sum(-1, keepdims=True) + 1e-6)
        k = k / np.sqrt((k * k).sum(-1, keepdims=True) + 1e-6)
        q = q if mistake == "query not scaled" else q * dk**-0.5
        share = np.arange(hv) % hk if mistake == "key head j % Hk" else np.arange(hv) // (hv // hk)
        q, k = q[:, share], k[:, share]
        beta = sigmoid(x @ w["linear_attn.in_proj_b.weight"].T)
        a_log = w["linear_attn.A_log"]
        if mistake == "A_log rounded to bf16":
            a_log = (a_log.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.float64)
        step = np.logaddexp(0.0, x @ w["linear_attn.in_proj_a.weight"].T + w["linear_attn.dt_bias"])
        alpha = np.exp(-np.exp(a_log) * step)
        state, out = np.zeros((hv, dk, dv)), np.empty((rows, hv, dv))
        for t in range(rows):
            old = state
            state = alpha[t][:, None, None] * state
            read = old if mistake == "decay after the read" else state
            change = beta[t][:, None] * (v[t] - np.einsum("hkv,hk->hv", read, k[t]))
            state = state + k[t][:, :, None] * change[:, None, :]
            source = state.transpose(0, 2, 1) if mistake == "state transposed" else state
            out[t] = np.einsum("hkv,hk->hv", source, q[t])
        weight = w["linear_attn.norm.weight"] + (mistake == "gated norm as 1 + w")
        z = (x @ w["linear_attn.in_proj_z.weight"].T).reshape(rows, hv, dv)
        gated = rms(out, weight, self.eps) * silu(z)
        return {
            "mixer": gated.reshape(rows, -1) @ w["linear_attn.out_proj.weight"].T,
            "recurrent_state": state,
            "conv_state": qkv[1 - taps :],
        }


DRAFT_MISTAKES = (
    "window as <=",
    "window of the last W-1 rows for every row",
    "causality the other way round",
    "KV head h % Nkv",
    "rope pairs interleaved",
    "context through input_layernorm",
)
CONV_MISTAKES = (
    "post kernel from the convolved rows",
    "conv groups strided",
    "row 0 reads the last row",
)
MIXED_MISTAKES = ("window of the other kind of layer",)


def draft_mistakes(config: dict) -> tuple[str, ...]:
    conv = CONV_MISTAKES if "conv_kernel_size" in config["dflash_config"] else ()
    return DRAFT_MISTAKES + conv + (MIXED_MISTAKES if len(set(config["layer_types"])) > 1 else ())


class Draft:
    """``weights``: float64 arrays under the checkpoint's names."""

    def __init__(self, config: dict, weights: dict[str, np.ndarray]):
        self.config, self.special, self.weights = config, config["dflash_config"], weights
        self.eps = config["rms_norm_eps"]

    def context(self, taps):
        return rms(taps @ self.weights["fc.weight"].T, self.weights["hidden_norm.weight"], self.eps)

    def heads(self, name, x, norm, positions, mistake):
        head = self.config["head_dim"]
        rows = (x @ self.weights[name].T).reshape(len(x), -1, head)
        if norm is None:
            return rows
        theta = float(self.config["rope_parameters"]["rope_theta"])
        return rope(rms(rows, self.weights[norm], self.eps), positions, theta, head, mistake)

    def convolve(self, x, delta, base, mistake):
        size = self.special["conv_group_size"]
        groups = x.shape[1] // size
        group = np.arange(x.shape[1]) % groups if mistake == "conv groups strided" else np.arange(x.shape[1]) // size
        out = np.zeros_like(x)
        for tap in range(base.shape[0]):
            rows = np.roll(x, tap, axis=0)
            if mistake != "row 0 reads the last row":
                rows[:tap] = 0.0
            out += (base[tap] + delta[:, tap][:, group]) * rows
        return out

    def around(self, name, x, inner, mistake):
        if f"{name}.base_kernel" not in self.weights:
            return inner(x)
        base = self.weights[f"{name}.base_kernel"]
        shape = (len(x), 2, base.shape[1], -1)
        delta = (x @ self.weights[f"{name}.kernel_projection.weight"].T).reshape(shape)
        before = self.convolve(x, delta[:, 0], base[0], mistake)
        if mistake == "post kernel from the convolved rows":
            delta = (before @ self.weights[f"{name}.kernel_projection.weight"].T).reshape(shape)
        return self.convolve(inner(before), delta[:, 1], base[1], mistake)

    def mask(self, index, mistake):
        """Window and causality of a layer: "is_causal" holds for all layers, else sliding layers are causal."""
        sliding = self.config["layer_types"][index] == "sliding_attention"
        causal = self.config.get("is_causal", sliding)
        if mistake == "window of the other kind of layer":
            sliding = not sliding
        return self.config["sliding_window"] if sliding else np.inf, causal

    def layer(self, index, h, context, context_k, context_v, mistake=None):
        base, first, rows = f"layers.{index}.", len(context), len(h)
        w, positions = self.weights, np.arange(len(context), len(context) + len(h), dtype=np.float64)
        attention, (window, causal) = base + "self_attn.", self.mask(index, mistake)
        if mistake == "context through input_layernorm":
            c = rms(context, w[base + "input_layernorm.weight"], self.eps)
            before = np.arange(first, dtype=np.float64)
            context_k = self.heads(attention + "k_proj.weight", c, attention + "k_norm.weight", before, None)
            context_v = self.heads(attention + "v_proj.weight", c, None, before, None)
        keys = np.arange(first + rows)
        distance = np.abs(positions[:, None] - keys[None, :])
        visible = distance <= window if mistake == "window as <=" else distance < window
        if mistake == "window of the last W-1 rows for every row":
            visible = np.broadcast_to(keys >= first - min(window - 1, first), visible.shape)
        if causal != (mistake == "causality the other way round"):
            visible = visible & (keys[None, :] <= positions[:, None])

        def attend_rows(a):
            q = self.heads(attention + "q_proj.weight", a, attention + "q_norm.weight", positions, mistake)
            k = self.heads(attention + "k_proj.weight", a, attention + "k_norm.weight", positions, mistake)
            v = self.heads(attention + "v_proj.weight", a, None, positions, mistake)
            k, v = np.concatenate([context_k, k]), np.concatenate([context_v, v])
            return attend(q, k, v, visible, mistake).reshape(rows, -1) @ w[attention + "o_proj.weight"].T

        def feed_forward(m):
            gate, up = m @ w[base + "mlp.gate_proj.weight"].T, m @ w[base + "mlp.up_proj.weight"].T
            return (silu(gate) * up) @ w[base + "mlp.down_proj.weight"].T

        x = rms(h, w[base + "input_layernorm.weight"], self.eps)
        h = h + self.around(base + "attention_conv", x, attend_rows, mistake)
        x = rms(h, w[base + "post_attention_layernorm.weight"], self.eps)
        return h + self.around(base + "mlp_conv", x, feed_forward, mistake)

    def candidates(self, logits):
        top = self.special.get("selector_top_k", 16)
        return np.stack([np.lexsort((np.arange(len(row)), -row))[:top] for row in logits])

    def walk(self, hidden, logits, candidates, anchor):
        w = self.weights
        energy = hidden @ w["candidate_selector.hidden_projection.weight"].T
        before, after = (w[f"candidate_selector.{name}_codebook"] for name in ("predecessor", "successor"))
        scores, path, previous = [], [], anchor
        for t, ids in enumerate(candidates):
            scores.append(logits[t, ids] + after[ids] @ (before[previous] * energy[t]))
            previous = int(ids[np.argmax(scores[-1])])
            path.append(previous)
        return np.stack(scores), np.array(path)
