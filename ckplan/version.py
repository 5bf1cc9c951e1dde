"""The version of ckplan, known without the metadata of an installed package."""

__version__ = "0.1.0"
