"""Several processes: the options of `accelerate launch`, from the command line or the recipe."""

import argparse
import functools
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import CalledProcessError

import torch
from accelerate.commands.config.config_args import default_config_file, load_config_from_file
from accelerate.commands.launch import launch_command, launch_command_parser
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from trl.cli.accelerate_config import resolve_accelerate_config_argument

from ..checks.errors import INTERRUPTED, SetupError
from ..config import PODSGRPOConfig

MODULE = "trl_pods.cli.train"
LAUNCHED = "TRL_PODS_LAUNCHED"  # marks the processes that were launched, as accelerate does not mark a single one


class LaunchOptions:
    """Options of `accelerate launch`."""

    def __init__(self, arguments: list[str] | None = None, use_cpu: bool = False, in_new_process: bool = False):
        self._default_number = 1 if use_cpu else max(1, torch.cuda.device_count())
        self._in_new_process = in_new_process
        self.arguments = _last_accelerate_config([part for argument in arguments or [] for part in _split(argument)])
        self._options = self._parse([])
        if self.num_processes < 1:
            raise SetupError(f"`num_processes` is {self.num_processes}, but it must be 1 or more.")

    @property
    def num_processes(self) -> int:
        """How many processes train, on all machines together."""
        if is_launched():
            return int(os.environ.get("WORLD_SIZE", 1))
        if self._options.num_processes is not None:
            return self._options.num_processes
        if self._options.config_file or os.path.isfile(default_config_file):
            return load_config_from_file(self._options.config_file).num_processes
        return self._default_number

    @property
    def needed(self) -> bool:
        """Whether the training must be launched rather than run in this process, as `trl grpo` always does."""
        configured = bool(self.arguments) or os.path.isfile(default_config_file) or self._in_new_process
        return not is_launched() and (configured or self._default_number > 1)

    def launch(self, arguments: list[str]) -> None:
        """Run the training script in as many processes as the options say."""
        options = self._parse(arguments)
        os.environ[LAUNCHED] = "1"
        try:
            launch_command(options)
        except ValueError as error:
            raise SetupError(f"{error} See `accelerate launch --help`.") from error
        except (KeyboardInterrupt, SignalException):  # of which the processes speak
            sys.exit(INTERRUPTED)
        except (ChildFailedError, CalledProcessError):
            sys.exit("A training process failed. Its error stands above.")

    def _parse(self, script_arguments: list[str]) -> argparse.Namespace:
        parser = launch_command_parser()
        parser.error = _refuse
        try:
            own = resolve_accelerate_config_argument(self.arguments)
        except ValueError as error:
            raise SetupError(f"`accelerate_config`: {error}") from error
        options = parser.parse_args([*own, "--module", MODULE, *script_arguments])
        if options.training_script != MODULE:
            raise SetupError(f"The argument {options.training_script!r} belongs to no option. Write `--option value`.")
        kinds = (options.multi_gpu, options.cpu, options.tpu, options.use_deepspeed, options.use_fsdp)
        if options.config_file is None and not os.path.isfile(default_config_file):
            options.num_machines = options.num_machines or 1  # accelerate's own defaults, of which it would warn
            options.mixed_precision = options.mixed_precision or "no"
            options.dynamo_backend = options.dynamo_backend or "no"
            if (options.num_processes or 1) > 1 and not any(kinds):
                options.multi_gpu = True  # accelerate does so only where it sees GPUs; else it runs one, silently
        return options


def is_launched() -> bool:
    """Tell whether a launcher started this process as one of several."""
    return LAUNCHED in os.environ or ("LOCAL_RANK" in os.environ and "WORLD_SIZE" in os.environ)


@contextmanager
def planned_world_size(num_processes: int) -> Iterator[None]:
    """Check batch sizes, in the `with` block, for the processes that there will be rather than for this one alone."""
    if is_launched():
        yield
        return
    PODSGRPOConfig.world_size = property(lambda args: num_processes)
    try:
        yield
    finally:
        del PODSGRPOConfig.world_size


def end_process_group() -> None:
    """
    End what connects the processes, if gloo does, at the end of a script, when its trainer is out of reach.

    Threads of gloo may still hold the tensors of their last operation, whose release needs Python's lock. Where the
    interpreter ends first, PyTorch aborts the process after all its work (PyTorch issue 190489). So they are ended
    while it lives. The processes do not wait for each other: the first may take long to send the model to the hub.
    """
    if torch.distributed.is_initialized() and torch.distributed.get_backend() == "gloo":
        gc.collect()  # trainers hold themselves in cycles, and the group with them
        torch.distributed.destroy_process_group()


@functools.cache
def launch_flags() -> dict[str, bool]:
    """The options of `accelerate launch`, and TRL's `accelerate_config`; whether each is a flag."""
    actions = [action for action in launch_command_parser()._actions if action.option_strings]
    own = ("help", "module", "no_python", "env")
    return {"accelerate_config": False} | {a.dest: a.nargs == 0 for a in actions if a.dest not in own}


def _split(argument: str) -> list[str]:
    if not argument.startswith("--"):
        return [argument]
    name, *value = argument.split("=", maxsplit=1)
    return [name.replace("-", "_").replace("__", "--", 1), *value]


def _last_accelerate_config(arguments: list[str]) -> list[str]:
    """Leave out all but the last `--accelerate_config`, because TRL takes only one."""
    places = [i for i, argument in enumerate(arguments) if argument == "--accelerate_config"]
    dropped = {i + k for i in places[:-1] for k in (0, 1)}
    return [argument for i, argument in enumerate(arguments) if i not in dropped]


def _refuse(message: str) -> None:
    raise SetupError(f"{message}. See `accelerate launch --help`.")
