"""Upload of an exported model to the Hugging Face hub; it needs internet access and a token."""

from __future__ import annotations

import logging
from pathlib import Path

from ..errors import ExitCode, UserError
from ..util.first_line import first_line

# Files that an export can consist of. Those of an earlier one that the present one lacks are deleted on
# the hub: whoever loads merged weights would get an adapter that is left beside them as well, and the
# chat template of another swarm with this one's model.
_OF_AN_EXPORT = (
    *("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"),
    *("adapter_config.json", "adapter_model.safetensors"),
    *("adapter/adapter_config.json", "adapter/adapter_model.safetensors"),
    *("config.json", "generation_config.json", "preprocessor_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    *("model_index.json", "scheduler/scheduler_config.json"),
    *("unet/config.json", "unet/diffusion_pytorch_model.safetensors"),
    "loss.svg",
)


def check_push(name: str) -> None:
    """Raise `UserError` if `push` certainly could not upload to `name`: `USAGE` for what is no name, and
    `HUB` without the library or a token. Nothing is sent."""
    try:
        from huggingface_hub import get_token
        from huggingface_hub.utils import HFValidationError, validate_repo_id
    except ImportError:
        raise _no_library(name) from None
    problem = "" if name.count("/") == 1 else "it has no owner, or several"
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        problem = problem or first_line(error, 300, empty="")
    if problem:
        raise UserError(
            ExitCode.USAGE,
            f"{name!r} is not a name on the Hugging Face Hub: {problem}",
            "give --push OWNER/NAME",
        )
    if get_token() is None:
        raise _no_user(name)


def push(directory: Path, name: str) -> str:
    """Create `name` ("owner/model") if it does not exist and upload all of `directory` to it. What an
    earlier export has left there is deleted, unless `directory` has the model as GGUF, which programs
    open without the files beside it.

    Return its URL. Raises `UserError` (`HUB`).
    """
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import (
            HfHubHTTPError,
            HFValidationError,
            LocalTokenNotFoundError,
        )
    except ImportError:
        raise _no_library(name) from None
    # The library's messages about retries would appear between ours.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    api = HfApi()
    try:
        url = api.create_repo(name, exist_ok=True)
        replaced = None if any(directory.glob("*.gguf")) else [*_OF_AN_EXPORT]
        api.upload_folder(repo_id=name, folder_path=directory, delete_patterns=replaced)
    except (HFValidationError, ValueError) as error:
        raise _refused(name, first_line(error, 300, empty=""), "give --push OWNER/NAME") from None
    except LocalTokenNotFoundError:
        raise _no_user(name) from None
    except HfHubHTTPError as error:
        raise _refused(
            name,
            first_line(error, 300, empty=""),
            "log in with `hf auth login` as a user who may write there",
        ) from None
    # Each library that huggingface_hub uses has its own exception for a missing connection.
    except Exception as error:
        text = first_line(error, 300, empty="")
        raise _refused(
            name,
            f"it cannot be reached from here ({type(error).__name__}: {text})",
            "push the directory when the hub is reachable: hf upload OWNER/NAME DIRECTORY",
        ) from None
    return str(url)


def _no_library(name: str) -> UserError:
    return _refused(
        name,
        "the package huggingface_hub is not installed",
        "install it with: pip install 'distro-node[train]'",
    )


def _no_user(name: str) -> UserError:
    return _refused(name, "no user is logged in", "log in with: hf auth login")


def _refused(name: str, problem: str, remedy: str) -> UserError:
    return UserError(
        ExitCode.HUB, f"{name!r} was not pushed to the Hugging Face hub: {problem}", remedy
    )
