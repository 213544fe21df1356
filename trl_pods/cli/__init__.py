"""The command line."""

import os

# They ask for the network only for what a recipe names. This is read when huggingface_hub is first imported.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
