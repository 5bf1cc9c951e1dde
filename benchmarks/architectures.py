"""Small networks of other people's packages, for `benchmarks.real_files`: transformers, timm and diffusers.

Width and depth are small, so that a row takes seconds; everything else is as the package has it.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

VOCABULARY, LENGTH, SIDE = 101, 12, 64

_SMALL: Mapping[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 2),
    **dict.fromkeys(("decoder_attention_heads", "num_key_value_heads"), 2),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "hidden_dim", "n_inner", "d_ff", "encoder_ffn_dim"), 64),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 64),
    **dict.fromkeys(("head_dim", "d_kv", "embedding_size"), 16),
    **dict.fromkeys(("num_labels",), 5),
    **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "resid_pdrop", "embd_pdrop"), 0.0),
    **dict.fromkeys(("attn_pdrop", "dropout", "attention_dropout", "hidden_dropout", "activation_dropout"), 0.0),
    **dict.fromkeys(("drop_path_rate", "classifier_dropout_prob", "dropout_rate", "drop_rate"), 0.0),
    "vocab_size": VOCABULARY,
    "image_size": SIDE,
    "use_cache": False,
    "pad_token_id": 0,
    "patch_size": 16,
}


@dataclass(frozen=True)
class Architecture:
    """A network and how it is exported.

    Attributes:
        package: where it comes from.
        model: name of its class, or of a model of timm.
        shape: of the input behind the batch: one number for token ids, several for numbers.
        config: name of its configuration class; empty where the options are arguments of the model.
        options: what is set besides the small sizes.
        dynamo: whether it goes through torch's default exporter, with external data, or through the old one.
        training: whether it is exported in training mode.
        part: attribute of the model that is taken in its place.
    """

    package: str
    model: str
    shape: tuple[int, ...]
    config: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    dynamo: bool = True
    training: bool = False
    part: str = ""


def _text(name: str, head: str = "Model", **options: Any) -> Architecture:
    return Architecture("transformers", f"{name}{head}", (LENGTH,), f"{name}Config", options)


def _image(name: str, head: str = "ForImageClassification", side: int = SIDE, **options: Any) -> Architecture:
    return Architecture("transformers", f"{name}{head}", (3, side, side), f"{name}Config", options)


_CAUSAL = "ForCausalLM"
_LEVELS = {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2}

ENCODERS = {
    name.lower(): _text(name)
    for name in (
        "Albert", "Bert", "ConvBert", "DebertaV2", "DistilBert", "Electra", "Ernie", "Esm", "FNet",
        "MPNet", "ModernBert", "Nystromformer", "RoFormer", "Roberta", "SqueezeBert", "XLMRoberta",
    )
}  # fmt: skip
DECODERS = {
    name.lower(): _text(name, _CAUSAL)
    for name in (
        "BioGpt", "Bloom", "CodeGen", "Cohere", "Falcon", "GPTNeo", "GPTNeoX", "Gemma", "Gemma2", "Glm", "Granite",
        "Helium", "Llama", "Mistral", "OPT", "Olmo2", "Persimmon", "Phi", "Phi3", "Qwen2", "Qwen3", "SmolLM3",
        "StableLm", "Starcoder2",
    )
}  # fmt: skip

ARCHITECTURES: dict[str, Architecture] = {
    **ENCODERS,
    **DECODERS,
    "squeezebert": _text("SqueezeBert", embedding_size=32),
    "gptneo": _text("GPTNeo", _CAUSAL, attention_types=[[["global", "local"], 1]]),
    "codegen": _text("CodeGen", _CAUSAL, rotary_dim=8, n_head=4, n_embd=64, n_ctx=64),
    "gpt2": Architecture("transformers", "GPT2LMHeadModel", (LENGTH,), "GPT2Config"),
    "mamba": _text("Mamba", _CAUSAL, state_size=4),
    "t5": _text("T5", "EncoderModel"),
    "wav2vec2": Architecture(
        "transformers", "Wav2Vec2Model", (1600,), "Wav2Vec2Config",
        {"conv_dim": [16] * 3, "conv_stride": [5, 4, 4], "conv_kernel": [10, 4, 4], "num_conv_pos_embeddings": 8,
         "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0},
    ),
    "whisper": Architecture(
        "transformers", "WhisperModel", (16, 40), "WhisperConfig",
        {"num_mel_bins": 16, "max_source_positions": 20, "decoder_start_token_id": 1, "bos_token_id": 1,
         "eos_token_id": 2},
        part="encoder",
    ),
    "ast": Architecture(
        "transformers", "ASTForAudioClassification", (64, 32), "ASTConfig", {"max_length": 64, "num_mel_bins": 32}
    ),
    "patchtst": Architecture(
        "transformers", "PatchTSTForPrediction", (32, 2), "PatchTSTConfig",
        {"num_input_channels": 2, "context_length": 32, "patch_length": 8, "patch_stride": 8, "prediction_length": 4},
    ),
    "vit": _image("ViT"),
    "deit": _image("DeiT"),
    "beit": _image("Beit"),
    "dinov2": _image("Dinov2"),
    "swin": _image("Swin", embed_dim=16, depths=[2, 2], num_heads=[2, 2], patch_size=4, window_size=4),
    "swinv2": _image("Swinv2", embed_dim=16, depths=[2, 2], num_heads=[2, 2], patch_size=4, window_size=4),
    "convnext": _image("ConvNext", **_LEVELS, patch_size=4),
    "convnextv2": _image("ConvNextV2", **_LEVELS, patch_size=4),
    "resnet": _image("ResNet", embedding_size=16, **_LEVELS, layer_type="basic"),
    "regnet": _image("RegNet", embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], groups_width=8),
    "poolformer": _image("PoolFormer", hidden_sizes=[16, 32], depths=[1, 1], num_encoder_blocks=2),
    "segformer": _image(
        "Segformer", "ForSemanticSegmentation", hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1],
        decoder_hidden_size=16, num_attention_heads=[1, 2, 2, 2],
    ),
    "pvt": _image(
        "Pvt", hidden_sizes=[8, 16, 16, 32], depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 2],
        patch_sizes=[4, 2, 2, 2],
    ),
    "mobilevit": _image(
        "MobileViT", hidden_sizes=[24, 32, 40], neck_hidden_sizes=[8, 8, 16, 24, 32, 40, 64], patch_size=2
    ),
    "focalnet": _image("FocalNet", embed_dim=16, depths=[1, 1], patch_size=4, focal_levels=[2, 2],
                       focal_windows=[3, 3], hidden_sizes=[16, 32]),
    "timm mobilenetv3": Architecture("timm", "mobilenetv3_small_050", (3, SIDE, SIDE)),
    "timm convnext_atto": Architecture("timm", "convnext_atto", (3, SIDE, SIDE)),
    "timm resmlp": Architecture("timm", "resmlp_12_224", (3, SIDE, SIDE), options={"img_size": SIDE}),
    "timm regnetx_002": Architecture("timm", "regnetx_002", (3, SIDE, SIDE)),
    "diffusers UNet2D": Architecture(
        "diffusers", "UNet2DModel", (3, 16, 16),
        options={"sample_size": 16, "block_out_channels": (16, 32), "norm_num_groups": 4, "layers_per_block": 1,
                 "down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "attention_head_dim": 8,
                 "up_block_types": ("AttnUpBlock2D", "UpBlock2D")},
    ),
    "diffusers AutoencoderKL": Architecture(
        "diffusers", "AutoencoderKL", (3, 32, 32),
        options={"block_out_channels": (8, 16), "norm_num_groups": 4, "layers_per_block": 1, "latent_channels": 4,
                 "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2},
    ),
}  # fmt: skip

_SPEECH = {"conv_dim": [16] * 3, "conv_stride": [5, 4, 4], "conv_kernel": [10, 4, 4], "num_conv_pos_embeddings": 8,
           "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0}  # fmt: skip
_PYRAMID = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32]}
_BACKBONE = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 24], "depths": [1, 1, 1],
             "layer_type": "basic", "out_features": ["stage1", "stage2", "stage3"]}  # fmt: skip

ARCHITECTURES |= {
    "mamba2": _text("Mamba2", _CAUSAL, num_heads=4, state_size=8, n_groups=1, chunk_size=4),
    "olmoe": _text("Olmoe", _CAUSAL, num_experts=4, num_experts_per_tok=2),
    "xlnet": _text("XLNet", d_inner=64),
    "wav2vec2conformer": Architecture(
        "transformers", "Wav2Vec2ConformerModel", (1600,), "Wav2Vec2ConformerConfig",
        {**_SPEECH, "position_embeddings_type": "relative", "conv_depthwise_kernel_size": 7},
    ),
    "dac": Architecture(
        "transformers", "DacModel", (16, 20), "DacConfig",
        {"encoder_hidden_size": 4, "downsampling_ratios": [2, 4], "decoder_hidden_size": 16, "hidden_size": 16,
         "upsampling_ratios": [4, 2]},
        part="decoder",
    ),
    "clip": Architecture("transformers", "CLIPVisionModel", (3, SIDE, SIDE), "CLIPVisionConfig"),
    "siglip": Architecture("transformers", "SiglipVisionModel", (3, SIDE, SIDE), "SiglipVisionConfig"),
    "levit": _image(
        "Levit", hidden_sizes=[16, 24, 32], num_attention_heads=[2, 2, 2], depths=[1, 1, 1], key_dim=[8, 8, 8],
        down_ops=[["Subsample", 8, 2, 2, 2, 2]] * 2,
    ),
    "efficientnet": _image("EfficientNet", width_coefficient=0.25, depth_coefficient=0.3, hidden_dim=320),
    "swiftformer": _image("SwiftFormer", embed_dims=[16, 16, 24, 32], depths=[1, 1, 1, 1]),
    "van": _image("Van", **_PYRAMID, patch_sizes=[7, 3, 3, 3]),
    "sam": Architecture(
        "transformers", "SamVisionModel", (3, SIDE, SIDE), "SamVisionConfig",
        {"patch_size": 8, "window_size": 3, "global_attn_indexes": [1], "output_channels": 16, "num_pos_feats": 8},
    ),
    "deformable detr": Architecture(
        "transformers", "DeformableDetrForObjectDetection", (3, SIDE, SIDE), "DeformableDetrConfig",
        {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "backbone_config": _BACKBONE,
         "num_queries": 5, "encoder_layers": 1, "decoder_layers": 1, "num_feature_levels": 3},
    ),
    "timm resnetblur18": Architecture("timm", "resnetblur18", (3, SIDE, SIDE)),
    "timm nf_resnet26": Architecture("timm", "nf_resnet26", (3, SIDE, SIDE)),
    "timm volo_d1": Architecture("timm", "volo_d1_224", (3, SIDE, SIDE), options={"img_size": SIDE}),
    "timm gmlp_ti16": Architecture("timm", "gmlp_ti16_224", (3, SIDE, SIDE), options={"img_size": SIDE}),
    "timm efficientvit_b0": Architecture("timm", "efficientvit_b0", (3, SIDE, SIDE)),
    "timm csatv2": Architecture("timm", "csatv2", (3, SIDE, SIDE)),
}  # fmt: skip
"""Networks with unusual parts: scans, experts, relative positions, windows, deformable attention, spectral layers."""

ARCHITECTURES |= {
    **{
        name.lower(): _text(name)
        for name in ("BigBird", "Canine", "Deberta", "Funnel", "IBert", "RoCBert", "Splinter")
    },
    **{
        name.lower(): _text(name, _CAUSAL)
        for name in ("DeepseekV3", "FalconMamba", "Glm4", "Lfm2", "RecurrentGemma", "Rwkv", "xLSTM")
    },
    "hubert": Architecture("transformers", "HubertModel", (1600,), "HubertConfig", _SPEECH),
    "wavlm": Architecture("transformers", "WavLMModel", (1600,), "WavLMConfig", _SPEECH),
    "detr": Architecture(
        "transformers", "DetrForObjectDetection", (3, SIDE, SIDE), "DetrConfig",
        {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "backbone_config": _BACKBONE,
         "num_queries": 5, "encoder_layers": 1, "decoder_layers": 1},
    ),
    "yolos": Architecture(
        "transformers", "YolosForObjectDetection", (3, SIDE, SIDE), "YolosConfig",
        {"image_size": [SIDE, SIDE], "num_detection_tokens": 5},
    ),
    "videomae": Architecture("transformers", "VideoMAEModel", (2, 3, SIDE, SIDE), "VideoMAEConfig", {"num_frames": 2}),
    "diffusers VQModel": Architecture(
        "diffusers", "VQModel", (3, 16, 16),
        options={"block_out_channels": (8,), "norm_num_groups": 4, "latent_channels": 3},
    ),
    **{
        f"timm {name}": Architecture("timm", name, (3, SIDE, SIDE))
        for name in ("dla34", "edgenext_xx_small", "fastvit_t8", "gernet_s", "mambaout_femto", "resnest14d")
    },
}  # fmt: skip
"""Networks that nothing here was made for: a time mix, straight-through estimates, tables with a padding row."""

_EXPERTS = {"_experts_implementation": "batched_mm"}
"""Each token multiplies by the weights of its experts; the default of transformers has no ONNX form."""
_STAGES = {"out_features": ["stage1", "stage2", "stage3", "stage4"], "reshape_hidden_states": False}

ARCHITECTURES |= {
    "apertus": _text("Apertus", _CAUSAL),
    "bamba": _text("Bamba", _CAUSAL, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=8, mamba_chunk_size=4),
    "gemma3": Architecture("transformers", "Gemma3ForCausalLM", (LENGTH,), "Gemma3TextConfig"),
    "gemma3n": Architecture(
        "transformers", "Gemma3nForCausalLM", (LENGTH,), "Gemma3nTextConfig",
        {"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8, "laurel_rank": 4,
         "num_kv_shared_layers": 0},
    ),
    "gptoss": Architecture(
        "transformers", "GptOssForCausalLM", (LENGTH,), "GptOssConfig",
        {"num_local_experts": 4, "num_experts_per_tok": 2, **_EXPERTS},
    ),
    "jamba": _text(
        "Jamba", _CAUSAL, num_experts=4, num_experts_per_tok=2, attn_layer_period=2, attn_layer_offset=1,
        use_mamba_kernels=False, mamba_d_state=8, **_EXPERTS,
    ),
    "mixtral": _text("Mixtral", _CAUSAL, num_local_experts=4, **_EXPERTS),
    "mobilebert": _text("MobileBert", intra_bottleneck_size=16),
    "dinov3": Architecture("transformers", "DINOv3ViTModel", (3, SIDE, SIDE), "DINOv3ViTConfig"),
    "depth anything": Architecture(
        "transformers", "DepthAnythingForDepthEstimation", (3, SIDE, SIDE), "DepthAnythingConfig",
        {"backbone_config": {"model_type": "dinov2", "hidden_size": 32, "num_hidden_layers": 4, "mlp_ratio": 2,
                             "num_attention_heads": 2, "image_size": SIDE, "patch_size": 16, **_STAGES},
         "reassemble_hidden_size": 32, "neck_hidden_sizes": [8, 8, 8, 8], "fusion_hidden_size": 8,
         "head_hidden_size": 8},
    ),
    "superpoint": Architecture("transformers", "SuperPointForKeypointDetection", (3, SIDE, SIDE), "SuperPointConfig"),
}  # fmt: skip
"""More of transformers 5: experts by products, scans among attention, norms of heads, pyramids behind a transformer."""

_TRAINED = ("bert", "resnet", "regnet", "gpt2", "vit", "timm mobilenetv3", "clip", "swiftformer")
_OLD = (
    "bert",
    "distilbert",
    "gptneox",
    "t5",
    "vit",
    "resnet",
    "convnext",
    "swin",
    "mobilevit",
    "opt",
    "xlnet",
    "sam",
    "van",
    "levit",
)

ARCHITECTURES |= {
    **{f"{name}, training": replace(ARCHITECTURES[name], training=True) for name in _TRAINED},
    **{f"{name}, old exporter": replace(ARCHITECTURES[name], dynamo=False) for name in _OLD},
}
"""Every network, by name."""


def build(architecture: Architecture) -> nn.Module:
    """The network with random weights, wrapped so that it has one input and one output.

    Every parameter gets some noise: equal ones, as of biases and scales that nothing has trained yet, would hide what
    is mixed up.
    """
    torch.manual_seed(0)
    package = importlib.import_module(architecture.package)
    if architecture.package == "timm":
        network = package.create_model(architecture.model, num_classes=5, **architecture.options)
    elif architecture.package == "diffusers":
        network = getattr(package, architecture.model)(**architecture.options)
    else:
        config_class = getattr(package, architecture.config)
        known = inspect.signature(config_class.__init__).parameters
        small = {name: value for name, value in _SMALL.items() if name in known or name in ("num_labels", "use_cache")}
        config = config_class(**{**small, **architecture.options})
        if not architecture.dynamo:
            config._attn_implementation = "eager"  # the old exporter cannot trace the others' masks
        network = getattr(package, architecture.model)(config)
    if architecture.part:
        network = getattr(network, architecture.part)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn_like(parameter))
    wrapped = _One(network, architecture.package == "diffusers" and architecture.model.startswith("UNet"))
    return wrapped.train(architecture.training)


def example(architecture: Architecture, batch: int = 2) -> torch.Tensor:
    """An input: token ids where the shape is one short number, else numbers."""
    shape = (batch, *architecture.shape)
    generator = torch.Generator().manual_seed(1)
    if len(shape) == 2 and shape[1] == LENGTH:
        return torch.randint(3, VOCABULARY, shape, generator=generator)
    return torch.randn(shape, generator=generator)


class _One(nn.Module):
    """A network of one input whose first output is taken."""

    def __init__(self, network: nn.Module, takes_time: bool) -> None:
        super().__init__()
        self.network = network
        self.takes_time = takes_time

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        found = self.network(given, 7) if self.takes_time else self.network(given)
        if hasattr(found, "to_tuple"):
            found = found.to_tuple()
        while isinstance(found, (tuple, list)):
            found = found[0]
        result: torch.Tensor = found
        return result
