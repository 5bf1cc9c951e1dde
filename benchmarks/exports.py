"""Architectures of other people: networks of the transformers package with random weights, exported by torch.

    python -m benchmarks.exports [NAMES] [--folder build/exports]

Each is small in width and depth and large enough in its input that a training step takes some MiB of activations. What
torch writes is kept as it is: its shape arithmetic, its masks, its opset. A few are of the size that people train, and
one is the U-Net of `benchmarks.torch_models`. Needs torch, transformers and onnxscript, for MobileNetV3 timm as well.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent.parent / "build" / "exports"
VOCABULARY = 1000


@dataclass(frozen=True)
class Export:
    """A network to export.

    Attributes:
        config: name of its configuration class in transformers; none for the U-Net and networks of timm.
        model: name of its model class, or in timm.
        options: arguments of the configuration.
        shape: of the input behind the batch: one number for token ids, several for pixels or spectra.
        result: attribute of the model's output that the file returns.
        encoder: whether only the encoder of a model that has both is taken.
    """

    config: str
    model: str
    options: Mapping[str, Any]
    shape: tuple[int, ...]
    result: str = "logits"
    encoder: bool = False

    @property
    def reads_tokens(self) -> bool:
        """Whether the input is token ids."""
        return len(self.shape) == 1


_TEXT = {"vocab_size": VOCABULARY, "num_hidden_layers": 2, "num_attention_heads": 4}
_ENCODER = {**_TEXT, "hidden_size": 128, "intermediate_size": 512}
_PATCHES = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "image_size": 224,
}
_DECODER = {**_TEXT, "hidden_size": 128, "intermediate_size": 256, "use_cache": False}

EXPORTS: Mapping[str, Export] = {
    "gpt2": Export(
        "GPT2Config",
        "GPT2LMHeadModel",
        {
            "vocab_size": 16_000,
            "n_layer": 6,
            "n_embd": 512,
            "n_head": 8,
            "n_positions": 256,
            "use_cache": False,
        },
        (256,),
    ),
    "bert": Export(
        "BertConfig",
        "BertForSequenceClassification",
        {**_TEXT, "hidden_size": 128, "intermediate_size": 512},
        (128,),
    ),
    "distilbert": Export(
        "DistilBertConfig",
        "DistilBertForMaskedLM",
        {"vocab_size": VOCABULARY, "dim": 128, "hidden_dim": 512, "n_layers": 2, "n_heads": 4},
        (128,),
    ),
    "t5": Export(
        "T5Config",
        "T5EncoderModel",
        {"vocab_size": VOCABULARY, "d_model": 128, "d_ff": 256, "num_layers": 2, "num_heads": 4, "d_kv": 32},
        (128,),
        "last_hidden_state",
    ),
    "opt": Export(
        "OPTConfig",
        "OPTForCausalLM",
        {**_TEXT, "hidden_size": 128, "ffn_dim": 512, "word_embed_proj_dim": 128, "use_cache": False},
        (128,),
    ),
    "llama": Export("LlamaConfig", "LlamaForCausalLM", {**_DECODER, "num_key_value_heads": 2}, (128,)),
    "mistral": Export(
        "MistralConfig", "MistralForCausalLM", {**_DECODER, "num_key_value_heads": 2, "sliding_window": 32}, (128,)
    ),
    "mamba": Export(
        "MambaConfig",
        "MambaForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 8, "use_cache": False},
        (16,),
    ),
    "vit": Export(
        "ViTConfig",
        "ViTForImageClassification",
        {
            "hidden_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 512,
            "image_size": 224,
        },
        (3, 224, 224),
    ),
    "whisper": Export(
        "WhisperConfig",
        "WhisperModel",
        {
            "vocab_size": VOCABULARY,
            "d_model": 128,
            "encoder_layers": 2,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 512,
            "max_source_positions": 200,
            "pad_token_id": 1,
            "bos_token_id": 2,
            "eos_token_id": 3,
            "decoder_start_token_id": 4,
        },
        (80, 400),
        "last_hidden_state",
        encoder=True,
    ),
    "convnext": Export(
        "ConvNextConfig",
        "ConvNextForImageClassification",
        {"hidden_sizes": [32, 64, 128, 256], "depths": [1, 1, 2, 1]},
        (3, 160, 160),
    ),
    "swin": Export(
        "SwinConfig",
        "SwinForImageClassification",
        {"embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "image_size": 224},
        (3, 224, 224),
    ),
    "segformer": Export(
        "SegformerConfig",
        "SegformerForSemanticSegmentation",
        {
            "hidden_sizes": [16, 32, 64, 128],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 4, 8],
            "decoder_hidden_size": 64,
        },
        (3, 160, 160),
    ),
    "mobilevit": Export(
        "MobileViTConfig",
        "MobileViTForImageClassification",
        {"hidden_sizes": [48, 64, 80], "neck_hidden_sizes": [16, 24, 32, 48, 64, 80, 160], "image_size": 128},
        (3, 128, 128),
    ),
    "resnet": Export(
        "ResNetConfig",
        "ResNetForImageClassification",
        {"embedding_size": 32, "hidden_sizes": [64, 128, 256, 512], "depths": [1, 1, 1, 1]},
        (3, 160, 160),
    ),
    "convbert": Export("ConvBertConfig", "ConvBertForMaskedLM", {**_ENCODER, "embedding_size": 64}, (128,)),
    "electra": Export("ElectraConfig", "ElectraForMaskedLM", {**_ENCODER, "embedding_size": 64}, (128,)),
    "roberta": Export("RobertaConfig", "RobertaForMaskedLM", _ENCODER, (128,)),
    "albert": Export("AlbertConfig", "AlbertForMaskedLM", {**_ENCODER, "embedding_size": 64}, (128,)),
    "mpnet": Export("MPNetConfig", "MPNetForMaskedLM", _ENCODER, (128,)),
    "gpt_neo": Export(
        "GPTNeoConfig",
        "GPTNeoForCausalLM",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 128,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 32,
            "use_cache": False,
        },
        (128,),
    ),
    "gpt_neox": Export("GPTNeoXConfig", "GPTNeoXForCausalLM", _DECODER, (128,)),
    "bloom": Export(
        "BloomConfig",
        "BloomForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": 128, "n_layer": 2, "n_head": 4, "use_cache": False},
        (128,),
    ),
    "qwen2": Export("Qwen2Config", "Qwen2ForCausalLM", {**_DECODER, "num_key_value_heads": 2}, (128,)),
    "gemma": Export("GemmaConfig", "GemmaForCausalLM", {**_DECODER, "num_key_value_heads": 1, "head_dim": 32}, (128,)),
    "phi": Export("PhiConfig", "PhiForCausalLM", _DECODER, (128,)),
    "stablelm": Export("StableLmConfig", "StableLmForCausalLM", {**_DECODER, "num_key_value_heads": 2}, (128,)),
    "deit": Export("DeiTConfig", "DeiTForImageClassification", _PATCHES, (3, 224, 224)),
    "dinov2": Export("Dinov2Config", "Dinov2ForImageClassification", {**_PATCHES, "patch_size": 16}, (3, 224, 224)),
    "regnet": Export(
        "RegNetConfig",
        "RegNetForImageClassification",
        {"embedding_size": 16, "hidden_sizes": [32, 64, 128, 256], "depths": [1, 1, 2, 1], "groups_width": 16},
        (3, 160, 160),
    ),
    "mobilenet_v2": Export(
        "MobileNetV2Config", "MobileNetV2ForImageClassification", {"image_size": 160}, (3, 160, 160)
    ),
    "poolformer": Export(
        "PoolFormerConfig",
        "PoolFormerForImageClassification",
        {"hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 2, 1]},
        (3, 160, 160),
    ),
    "unet": Export("", "UNet", {}, (3, 128, 128)),
    "vit_small": Export(
        "ViTConfig",
        "ViTForImageClassification",
        {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536},
        (3, 224, 224),
    ),
    "resnet50": Export("ResNetConfig", "ResNetForImageClassification", {}, (3, 224, 224)),
    "efficientnet_b0": Export(
        "EfficientNetConfig",
        "EfficientNetForImageClassification",
        {"width_coefficient": 1.0, "depth_coefficient": 1.0, "hidden_dim": 1280, "image_size": 224},
        (3, 224, 224),
    ),
    "mobilenet_v3": Export("", "mobilenetv3_large_100", {}, (3, 224, 224)),
    "convnext_tiny": Export("ConvNextConfig", "ConvNextForImageClassification", {}, (3, 224, 224)),
}
"""What `export` can make, by name."""


def network_of(name: str, batch: int) -> tuple[Any, Any]:
    """A network, a module of one input and one output in evaluation mode, and an input for it."""
    import torch
    import transformers

    spec = EXPORTS[name]
    torch.manual_seed(0)
    if not spec.config:
        return _without_config(spec.model).eval(), torch.randn(batch, *spec.shape)
    config = getattr(transformers, spec.config)(**spec.options)
    config._attn_implementation = "eager"
    network = getattr(transformers, spec.model)(config).eval()
    if spec.encoder:
        network = network.get_encoder()
    shape = (batch, *spec.shape)
    example = torch.randint(5, VOCABULARY, shape) if spec.reads_tokens else torch.randn(shape)
    return _only(network, spec.result), example


def _without_config(model: str) -> Any:
    """The U-Net, or a network of timm."""
    if model == "UNet":
        from benchmarks.torch_models import UNet

        return UNet()
    import timm

    return timm.create_model(model)


def export(name: str, batch: int, folder: Path = FOLDER) -> Path:
    """The file of a network at a batch size, made if it is not there yet.

    Args:
        name: one of `EXPORTS`.
        batch: size of the first dimension of the input; the file is static.
        folder: where files are kept.
    """
    path = folder / f"{name}-{batch}.onnx"
    if path.exists():
        return path
    import torch

    network, example = network_of(name, batch)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".tmp")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (example,),
            unfinished,
            input_names=["input"],
            output_names=["output"],
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    unfinished.rename(path)
    return path


def _only(network: Any, result: str) -> Any:
    """A module of one input and one output around a network of transformers."""
    import torch

    class Only(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = getattr(self.network(given), result)
            return found

    return Only()


def main(report: Callable[[str], None] = print) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(EXPORTS))
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    for name in arguments.names:
        try:
            report(str(export(name, arguments.batch, arguments.folder)))
        except Exception as error:
            report(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}")


if __name__ == "__main__":
    main()
