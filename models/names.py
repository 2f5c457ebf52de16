"""Names and shapes of a GDN layer's tensors in checkpoints and in ``GatedDeltaNet``."""

from __future__ import annotations

from torch_mps_fusion.models.config import GDNConfig

# Where a decoder layer's tensors start, by kind of checkpoint.
PREFIXES = (
    "model.language_model.layers.{}.",  # vision-language models
    "model.layers.{}.",  # text-only models
    "language_model.model.layers.{}.",  # MLX files of vision-language models
    "layers.{}.",  # the bare language model
)
MIXER = "linear_attn."
INPUT_NORM = "input_layernorm.weight"
INPUT_NORM_PARAMETER = "input_norm_weight"

SPLIT_PROJECTIONS = (
    "in_proj_qkv.weight",
    "in_proj_z.weight",
    "in_proj_b.weight",
    "in_proj_a.weight",
)
GROUPED_PROJECTIONS = ("in_proj_qkvz.weight", "in_proj_ba.weight")
OUT_PROJECTION = "out_proj.weight"
PROJECTIONS = (*SPLIT_PROJECTIONS, *GROUPED_PROJECTIONS, OUT_PROJECTION)
# May be float32 in a checkpoint of a 16-bit model: the decay is computed from them in float32.
DECAY_PARAMETERS = ("A_log", "dt_bias")
SHARED = ("conv1d.weight", *DECAY_PARAMETERS, "norm.weight", OUT_PROJECTION)


def parameter_shapes(config: GDNConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter of the layer, by the name that Qwen3.5 checkpoints use."""
    hidden, heads = config.hidden_size, config.num_v_heads
    return {
        "in_proj_qkv.weight": (config.conv_dim, hidden),
        "in_proj_z.weight": (config.value_dim, hidden),
        "in_proj_b.weight": (heads, hidden),
        "in_proj_a.weight": (heads, hidden),
        "conv1d.weight": (config.conv_dim, 1, config.conv_kernel_size),
        "A_log": (heads,),
        "dt_bias": (heads,),
        "norm.weight": (config.head_v_dim,),
        "out_proj.weight": (hidden, config.value_dim),
    }


def grouped_shapes(config: GDNConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of the two projections that Qwen3-Next checkpoints group by key head."""
    return {
        "in_proj_qkvz.weight": (config.conv_dim + config.value_dim, config.hidden_size),
        "in_proj_ba.weight": (2 * config.num_v_heads, config.hidden_size),
    }
