"""The target: a small Qwen3.5 text model (gated delta net layers and gated attention layers), dense or with routed
experts, in plain PyTorch.

Parameter names are those of Hugging Face's text-only class, so the state dict exports by renaming alone. The delta rule
runs in chunks of 64 tokens, and the chunk states come from an associative scan, so a sequence needs no loop over time.
"""

import json
import math
import pathlib
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from quantise import BITS, GROUP, dequantise, quantise, unpack
from safetensors.torch import load_file
from torch import nn

CHUNK = 64
PREFILL_TOKENS = 2**19
# Weight of the routers' load-balancing loss in training.
BALANCE_WEIGHT = 0.01
EXPERT_FIELDS = (
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
)


@dataclass
class TargetConfig:
    vocab_size: int = 8192
    hidden_size: int = 256
    intermediate_size: int = 448
    num_hidden_layers: int = 8
    full_attention_interval: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    partial_rotary_factor: float = 0.25
    rope_theta: float = 1e7
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_key_head_dim: int = 64
    linear_value_head_dim: int = 64
    linear_conv_kernel_dim: int = 4
    rms_norm_eps: float = 1e-6
    num_experts: int = 0
    num_experts_per_tok: int = 0
    moe_intermediate_size: int = 0
    shared_expert_intermediate_size: int = 0

    @property
    def layer_types(self):
        return [
            "full_attention" if (i + 1) % self.full_attention_interval == 0 else "linear_attention"
            for i in range(self.num_hidden_layers)
        ]

    def hf_config(self, ids):
        """config.json of the Hugging Face export; ids maps token texts to ids."""
        text = asdict(self)
        theta = text.pop("rope_theta")
        kind = "qwen3_5_moe" if self.num_experts else "qwen3_5"
        if self.num_experts:
            del text["intermediate_size"]
            text.update({"output_router_logits": False, "router_aux_loss_coef": BALANCE_WEIGHT})
        else:
            for name in EXPERT_FIELDS:
                del text[name]
        text.update(
            {
                "attention_bias": False,
                "attention_dropout": 0.0,
                "attn_output_gate": True,
                "bos_token_id": None,
                "dtype": "bfloat16",
                "eos_token_id": ids["<|endoftext|>"],
                "hidden_act": "silu",
                "initializer_range": 0.02,
                "layer_types": self.layer_types,
                "mamba_ssm_dtype": "float32",
                "max_position_embeddings": 262144,
                "model_type": f"{kind}_text",
                "rope_parameters": {
                    "mrope_interleaved": True,
                    "mrope_section": [4, 2, 2],
                    "partial_rotary_factor": self.partial_rotary_factor,
                    "rope_theta": theta,
                    "rope_type": "default",
                },
                "tie_word_embeddings": True,
                "use_cache": True,
            }
        )
        return {
            "architectures": [f"Qwen3_5{'Moe' if self.num_experts else ''}ForConditionalGeneration"],
            "dtype": "bfloat16",
            "model_type": kind,
            "text_config": dict(sorted(text.items())),
            "tie_word_embeddings": True,
        }


class Linear(nn.Module):
    """A matrix without bias."""

    def __init__(self, inputs, outputs, std=0.02):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * std)

    def forward(self, x):
        return F.linear(x, self.weight)


class Norm(nn.Module):
    """RMS norm with weight 1 + w."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x.float(), self.weight.shape, 1.0 + self.weight.float(), self.eps).to(x.dtype)


class GatedNorm(nn.Module):
    """RMS norm with plain weight, then a SiLU gate."""

    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x, gate):
        normed = F.rms_norm(x.float(), self.weight.shape, None, self.eps).to(gate.dtype)
        return (self.weight.float() * normed.float() * F.silu(gate.float())).to(gate.dtype)


def inverse_levels(a):
    """Inverse of I + a for strictly lower triangular a, by doubling the size of the inverted diagonal blocks."""
    size = a.shape[-1]
    index = torch.arange(size, device=a.device)
    result = torch.eye(size, device=a.device, dtype=a.dtype).expand_as(a)
    block = 1
    while block < size:
        same_pair = (index[:, None] // (2 * block)) == (index // (2 * block))
        below = ((index[:, None] // block) % 2 == 1) & ((index // block) % 2 == 0)
        result = result - result @ (a * (same_pair & below)) @ result
        block *= 2
    return result


class UnitLowerInverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a):
        inverse = inverse_levels(a)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx, gradient):
        (inverse,) = ctx.saved_tensors
        transposed = inverse.mT
        return -(transposed @ gradient @ transposed)


def scan_states(m, n):
    """Inclusive scan over chunks (dimension 2) of the maps S -> m S + n."""
    step, count = 1, m.shape[2]
    while step < count:
        later = m[:, :, step:]
        n = torch.cat([n[:, :, :step], n[:, :, step:] + later @ n[:, :, :-step]], 2)
        m = torch.cat([m[:, :, :step], later @ m[:, :, :-step]], 2)
        step *= 2
    return m, n


def chunked_delta_rule(q, k, v, g, beta, state):
    """Gated delta rule over whole sequences.

    q, k, v are [B, T, heads, D]; g, beta [B, T, heads]; state is [B, heads, Dk, Dv], or None for zeros.
    Returns the outputs [B, T, heads, Dv] and the state after the last token.
    """
    length = q.shape[1]
    padding = -length % CHUNK

    def split(x):
        x = F.pad(x, (0, 0) * (x.dim() - 2) + (0, padding)).unflatten(1, (-1, CHUNK))
        return x.movedim(3, 1).contiguous()

    q, k, v, g, beta = map(split, (q, k, v, g, beta))
    total = g.cumsum(-1)
    lower = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).tril()
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, -math.inf).exp()
    weighted = k * beta[..., None]
    inverse = UnitLowerInverse.apply(((weighted @ k.mT) * decay).tril(-1))
    u = inverse @ (v * beta[..., None])
    w = inverse @ (weighted * total.exp()[..., None])
    last = total[..., -1:]
    to_end = (k * (last - total).exp()[..., None]).mT
    identity = torch.eye(k.shape[-1], device=k.device)
    maps, offsets = scan_states(identity * last.exp()[..., None] - to_end @ w, to_end @ u)
    if state is None:
        after, before = offsets, F.pad(offsets[:, :, :-1], (0, 0, 0, 0, 1, 0))
    else:
        after = maps @ state[:, :, None] + offsets
        before = torch.cat([state[:, :, None], after[:, :, :-1]], 2)
    corrected = u - w @ before
    out = (q * total.exp()[..., None]) @ before + ((q @ k.mT) * decay) @ corrected
    return out.movedim(1, 3).contiguous().flatten(1, 2)[:, :length], after[:, :, -1]


def delta_step(q, k, v, g, beta, state):
    """The rule for one token; the same shapes with T = 1."""
    q, k, v, g, beta = (x[:, 0] for x in (q, k, v, g, beta))
    state = state * g.exp()[..., None, None]
    delta = beta[..., None] * (v - (state * k[..., None]).sum(-2))
    state = state + k[..., None] * delta[..., None, :]
    return (state * q[..., None]).sum(-2)[:, None], state


def unit(x):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


class GatedDeltaNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.key_heads, self.value_heads = c.linear_num_key_heads, c.linear_num_value_heads
        self.key_dim, self.value_dim = c.linear_key_head_dim, c.linear_value_head_dim
        keys, values = self.key_heads * self.key_dim, self.value_heads * self.value_dim
        self.sizes = (keys, keys, values)
        channels = sum(self.sizes)
        self.in_proj_qkv = Linear(c.hidden_size, channels)
        self.in_proj_z = Linear(c.hidden_size, values)
        self.in_proj_b = Linear(c.hidden_size, self.value_heads)
        self.in_proj_a = Linear(c.hidden_size, self.value_heads)
        self.conv1d = nn.Module()
        self.conv1d.weight = nn.Parameter(torch.rand(channels, 1, c.linear_conv_kernel_dim) - 0.5)
        self.A_log = nn.Parameter(torch.empty(self.value_heads).uniform_(1, 16).log())
        step = torch.exp(torch.empty(self.value_heads).uniform_(math.log(0.001), math.log(0.1)))
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.norm = GatedNorm(self.value_dim, c.rms_norm_eps)
        self.out_proj = Linear(values, c.hidden_size, 0.02 / math.sqrt(2 * c.num_hidden_layers))

    def forward(self, x, state):
        rows = self.in_proj_qkv(x)
        kernel = self.conv1d.weight[:, 0].float()
        taps = kernel.shape[-1]
        if state is None:
            buffer = F.pad(rows, (0, 0, taps - 1, 0))
        else:
            buffer = torch.cat([state["conv"], rows], 1)
            state["conv"] = buffer[:, -(taps - 1) :]
        length = rows.shape[1]
        mixed = sum(buffer[:, j : j + length].float() * kernel[:, j] for j in range(taps))
        q, k, v = F.silu(mixed.to(rows.dtype)).float().split(self.sizes, -1)
        q = unit(q.unflatten(-1, (self.key_heads, -1))) * self.key_dim**-0.5
        k = unit(k.unflatten(-1, (self.key_heads, -1)))
        v = v.unflatten(-1, (self.value_heads, -1))
        repeats = self.value_heads // self.key_heads
        q, k = q.repeat_interleave(repeats, 2), k.repeat_interleave(repeats, 2)
        beta = self.in_proj_b(x).sigmoid().float()
        g = -self.A_log.float().exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias.float())
        with torch.autocast(x.device.type, enabled=False):
            if state is not None and length == 1:
                out, state["memory"] = delta_step(q, k, v, g, beta, state["memory"])
            else:
                out, memory = chunked_delta_rule(q, k, v, g, beta, None if state is None else state["memory"])
                if state is not None:
                    state["memory"] = memory
        z = self.in_proj_z(x).unflatten(-1, (self.value_heads, -1))
        return self.out_proj(self.norm(out, z).flatten(-2))


def rotary_table(dims, theta, length, device):
    frequency = theta ** (-torch.arange(0, dims, 2, device=device, dtype=torch.float32) / dims)
    angle = torch.arange(length, device=device, dtype=torch.float32)[:, None] * frequency
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """Rotates the first 2 * cos.shape[-1] dimensions of x [B, T, heads, D]; pairs are (i, i + half)."""
    half = cos.shape[-1]
    cos, sin = cos.unsqueeze(-2).to(x.dtype), sin.unsqueeze(-2).to(x.dtype)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)


class GatedAttention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads, self.dim = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        self.q_proj = Linear(c.hidden_size, 2 * self.heads * self.dim)
        self.k_proj = Linear(c.hidden_size, self.kv_heads * self.dim)
        self.v_proj = Linear(c.hidden_size, self.kv_heads * self.dim)
        self.o_proj = Linear(self.heads * self.dim, c.hidden_size, 0.02 / math.sqrt(2 * c.num_hidden_layers))
        self.q_norm = Norm(self.dim, c.rms_norm_eps)
        self.k_norm = Norm(self.dim, c.rms_norm_eps)

    def forward(self, x, rotary, state, start):
        q, gate = self.q_proj(x).unflatten(-1, (self.heads, 2, self.dim)).unbind(-2)
        k = self.k_proj(x).unflatten(-1, (self.kv_heads, self.dim))
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, self.dim))
        q, k = rotate(self.q_norm(q), *rotary), rotate(self.k_norm(k), *rotary)
        if state is not None:
            end = start + x.shape[1]
            state["k"][:, start:end], state["v"][:, start:end] = k, v
            k, v = state["k"][:, :end], state["v"][:, :end]
        repeats = self.heads // self.kv_heads
        k, v = k.repeat_interleave(repeats, 2), v.repeat_interleave(repeats, 2)
        q, k, v = q.to(v.dtype).transpose(1, 2), k.to(v.dtype).transpose(1, 2), v.transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=x.shape[1] > 1)
        out = out.transpose(1, 2).contiguous() * gate.sigmoid()
        return self.o_proj(out.flatten(-2))


class FeedForward(nn.Module):
    def __init__(self, c, size):
        super().__init__()
        self.gate_proj = Linear(c.hidden_size, size)
        self.up_proj = Linear(c.hidden_size, size)
        self.down_proj = Linear(size, c.hidden_size, 0.02 / math.sqrt(2 * c.num_hidden_layers))

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Module):
    """The stacked experts, gate rows before up rows."""

    def __init__(self, c):
        super().__init__()
        count, size, hidden = c.num_experts, c.moe_intermediate_size, c.hidden_size
        self.gate_up_proj = nn.Parameter(torch.randn(count, 2 * size, hidden) * 0.02)
        self.down_proj = nn.Parameter(torch.randn(count, hidden, size) * 0.02 / math.sqrt(2 * c.num_hidden_layers))

    def forward(self, x, weights):
        """Every expert sees every token; weights [..., experts] are zero for those that were not chosen. For experts
        this small, two large products are faster than gathering tokens."""
        both = F.linear(x, self.gate_up_proj.flatten(0, 1)).unflatten(-1, self.gate_up_proj.shape[:2])
        gate, up = both.chunk(2, -1)
        inner = F.silu(gate) * up * weights[..., None].to(up.dtype)
        return F.linear(inner.flatten(-2), self.down_proj.transpose(0, 1).flatten(1))


class SparseFeedForward(nn.Module):
    """Routed experts with renormalised weights, and a shared expert with a sigmoid gate."""

    def __init__(self, c):
        super().__init__()
        self.chosen = c.num_experts_per_tok
        self.gate = Linear(c.hidden_size, c.num_experts)
        self.experts = Experts(c)
        self.shared_expert = FeedForward(c, c.shared_expert_intermediate_size)
        self.shared_expert_gate = Linear(c.hidden_size, 1)

    def forward(self, x):
        """The output and the load-balancing loss (1 when the tokens are spread evenly)."""
        shares = F.linear(x, self.gate.weight).float().softmax(-1)
        top, chosen = shares.topk(self.chosen, -1)
        weights = torch.zeros_like(shares).scatter(-1, chosen, top / top.sum(-1, keepdim=True))
        used = (weights > 0).float().flatten(0, -2).mean(0) / self.chosen
        balance = shares.shape[-1] * (used * shares.flatten(0, -2).mean(0)).sum()
        shared = self.shared_expert_gate(x).sigmoid() * self.shared_expert(x)
        return self.experts(x, weights) + shared, balance


class Layer(nn.Module):
    def __init__(self, c, kind):
        super().__init__()
        self.kind = kind
        self.input_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = Norm(c.hidden_size, c.rms_norm_eps)
        if kind == "full_attention":
            self.self_attn = GatedAttention(c)
        else:
            self.linear_attn = GatedDeltaNet(c)
        self.mlp = SparseFeedForward(c) if c.num_experts else FeedForward(c, c.intermediate_size)

    def forward(self, h, rotary, state, start):
        """The layer's output, and its load-balancing loss (None for a dense layer)."""
        x = self.input_layernorm(h)
        mixed = self.self_attn(x, rotary, state, start) if self.kind == "full_attention" else self.linear_attn(x, state)
        h = h + mixed
        x = self.post_attention_layernorm(h)
        y, balance = self.mlp(x) if isinstance(self.mlp, SparseFeedForward) else (self.mlp(x), None)
        return h + y, balance


class Target(nn.Module):
    def __init__(self, config=None):
        super().__init__()
        c = self.config = config or TargetConfig()
        self.model = nn.Module()
        self.model.embed_tokens = Linear(c.hidden_size, c.vocab_size)
        self.model.layers = nn.ModuleList(Layer(c, kind) for kind in c.layer_types)
        self.model.norm = Norm(c.hidden_size, c.rms_norm_eps)

    def hidden(self, ids, taps=(), states=None, start=0, balances=None):
        """Final normed hidden states, and the concatenated outputs of the tapped layers (None without taps). The
        layers' load-balancing losses are appended to balances, if that is a list."""
        c = self.config
        h = F.embedding(ids, self.model.embed_tokens.weight)
        dims = int(c.head_dim * c.partial_rotary_factor)
        cos, sin = rotary_table(dims, c.rope_theta, start + ids.shape[1], ids.device)
        kept = []
        for index, layer in enumerate(self.model.layers):
            h, balance = layer(h, (cos[start:], sin[start:]), None if states is None else states[index], start)
            if balances is not None:
                balances.append(balance)
            if index in taps:
                kept.append(h)
        return self.model.norm(h), torch.cat(kept, -1) if kept else None

    def logits(self, hidden):
        return F.linear(hidden, self.model.embed_tokens.weight)

    def new_states(self, batch, length, device):
        c, states = self.config, []
        dtype = self.model.embed_tokens.weight.dtype
        channels = (
            2 * c.linear_num_key_heads * c.linear_key_head_dim + c.linear_num_value_heads * c.linear_value_head_dim
        )
        for kind in c.layer_types:
            if kind == "full_attention":
                shape = (batch, length, c.num_key_value_heads, c.head_dim)
                states.append(
                    {
                        "k": torch.zeros(shape, dtype=dtype, device=device),
                        "v": torch.zeros(shape, dtype=dtype, device=device),
                    }
                )
            else:
                conv = torch.zeros(batch, c.linear_conv_kernel_dim - 1, channels, dtype=dtype, device=device)
                memory = torch.zeros(
                    batch, c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim, device=device
                )
                states.append({"conv": conv, "memory": memory})
        return states

    def prefill(self, prompts, taps, states):
        """The final hidden state of the last position and the taps of all; some sequences at a time, to save memory."""
        last, features = [], []
        for rows in torch.arange(len(prompts)).split(max(1, PREFILL_TOKENS // prompts.shape[1])):
            rows = slice(int(rows[0]), int(rows[-1]) + 1)
            part = [{name: value[rows] for name, value in state.items()} for state in states]
            hidden, tapped = self.hidden(prompts[rows], taps, part)
            for state, filled in zip(states, part, strict=True):
                for name, value in filled.items():
                    state[name][rows] = value
            last.append(hidden[:, -1])
            features.append(tapped)
        return torch.cat(last), torch.cat(features) if taps else None

    @torch.no_grad()
    def greedy(self, prompts, count, taps=()):
        """Greedy continuation: prompts [B, P] -> ids [B, P + count], and the taps of all positions but the last."""
        batch, length = prompts.shape
        states = self.new_states(batch, length + count, prompts.device)
        last, features = self.prefill(prompts, taps, states)
        token = self.logits(last).argmax(-1)
        tokens, tapped = [token], [features]
        for position in range(length, length + count - 1):
            hidden, features = self.hidden(token[:, None], taps, states, position)
            token = self.logits(hidden[:, -1]).argmax(-1)
            tokens.append(token)
            tapped.append(features)
        return torch.cat([prompts, torch.stack(tokens, 1)], 1), torch.cat(tapped, 1) if taps else None


PREFIX = "model.language_model."


def hf_tensors(target):
    """The Hugging Face state: bfloat16, with A_log in float32."""
    tensors = {}
    for name, value in target.state_dict().items():
        dtype = torch.float32 if name.endswith("A_log") else torch.bfloat16
        tensors[PREFIX + name.removeprefix("model.")] = value.detach().to("cpu", dtype).contiguous()
    return tensors


def quantised_bits(name, value):
    """Bits of a tensor in the MLX export: 8 for routers and shared-expert gates, 4 for the other matrices and the
    stacked experts, 0 for what stays as it is (norms, the convolution, A_log, dt_bias)."""
    if name.endswith((".mlp.gate.weight", ".mlp.shared_expert_gate.weight")):
        return 8
    matrix = value.dim() == 2 and name.endswith(".weight")
    return BITS if matrix or ".experts." in name else 0


def shifted_norm(name):
    """Whether a norm's weight is stored as w by Hugging Face and as 1 + w by MLX."""
    return name.endswith("norm.weight") and ".linear_attn." not in name


def mlx_state(folder):
    """The tensors of an MLX folder under Hugging Face's names, dequantised to bfloat16; norms as w in float32."""
    stored = load_file(pathlib.Path(folder) / "model.safetensors")
    state = {}
    for name, value in stored.items():
        if name.endswith((".scales", ".biases")):
            continue
        module = name.removesuffix(".weight")
        if value.dtype == torch.uint32:
            scales, biases = stored[f"{module}.scales"], stored[f"{module}.biases"]
            bits = 32 * value.shape[-1] // (scales.shape[-1] * GROUP)
            value = dequantise(unpack(value, bits), scales, biases)
        elif name.endswith("conv1d.weight"):
            value = value.transpose(1, 2).contiguous()
        elif shifted_norm(name):
            value = value.float() - 1.0
        state[name.removeprefix("language_model.")] = value
    for name in [name for name in state if ".switch_mlp.gate_proj" in name]:
        experts = name.removesuffix("switch_mlp.gate_proj.weight") + "experts."
        up = state.pop(name.replace("gate_proj", "up_proj"))
        state[experts + "gate_up_proj"] = torch.cat([state.pop(name), up], 1)
        state[experts + "down_proj"] = state.pop(name.replace("gate_proj", "down_proj"))
    return state


def hf_state(folder, four_bit):
    state = {}
    for name, value in load_file(pathlib.Path(folder) / "model.safetensors").items():
        bits = quantised_bits(name, value)
        if bits and four_bit:
            value = dequantise(*quantise(value, bits))
        elif four_bit and shifted_norm(name):
            value = (1.0 + value.float()).to(torch.bfloat16).float() - 1.0
        state["model." + name.removeprefix(PREFIX)] = value
    return state


def load_target(folder, device, four_bit=False):
    """Loads an export for inference: bfloat16 matrices, float32 vectors. The folder is an MLX one, or a Hugging Face
    one, of which four_bit gives the weights that its MLX export holds."""
    target = Target(load_config(folder))
    is_mlx = "quantization" in json.loads((pathlib.Path(folder) / "config.json").read_text())
    state = mlx_state(folder) if is_mlx else hf_state(folder, four_bit)
    for name, value in state.items():
        if value.dim() == 1:
            state[name] = value.float()
    target.load_state_dict(state, assign=True)
    return target.to(device).eval().requires_grad_(False)


def load_config(folder):
    text = json.loads((pathlib.Path(folder) / "config.json").read_text())["text_config"]
    values = {name: text[name] for name in TargetConfig.__dataclass_fields__ if name in text}
    return TargetConfig(**values, rope_theta=text["rope_parameters"]["rope_theta"])
