"""The one-line errors of configurations and runs, their wording, and the exit status of commands."""

from __future__ import annotations

import difflib
import os
import re
import select
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

RUN_ERROR_STATUS = 1
USER_ERROR_STATUS = 2
INTERRUPTED_STATUS = 130  # 128 + SIGINT, as shells count
UNREAD_STATUS = 141  # 128 + SIGPIPE

OF_OTHERS = {
    "lr": "learning_rate step_size actor_lr policy_lr critic_lr",
    "lr_actor": "learning_rate actor_lr policy_lr pi_lr",
    "lr_critic": "learning_rate critic_lr q_lr vf_lr",
    "entropy_coefficient": "ent_coef entropy_coef entropy_coeff",
    "alpha": "ent_coef entropy_coef entropy_coeff",
    "value_coefficient": "vf_coef value_loss_coef vf_loss_coeff critic_coef",
    "clip": "clip_range clip_coef clip_param clip_epsilon",
    "clip_value": "clip_range_vf clip_vloss vf_clip_param",
    "epochs": "n_epochs num_epochs update_epochs num_learning_epochs num_sgd_iter",
    "minibatch_size": "batch_size sgd_minibatch_size mini_batch_size num_minibatches num_mini_batches",
    "steps_per_batch": "n_steps num_steps num_steps_per_env rollout_fragment_length rollout_length horizon",
    "n_step": "n_steps",
    "gae_lambda": "lam lambda lambda_ gae_lam",
    "gamma": "discount discount_factor",
    "target_kl": "desired_kl kl_target",
    "normalize_advantage": "norm_adv",
    "normalize_observations": "norm_obs normalize_obs",
    "normalize_rewards": "norm_reward normalize_reward",
    "max_grad_norm": "grad_clip max_gradient_norm clip_grad_norm",
    "initial_std": "log_std_init init_noise_std",
    "buffer_size": "replay_size memory_size capacity replay_buffer_capacity",
    "learning_starts": "warmup_steps start_steps",
    "random_frames": "start_steps init_random_frames",
    "frames_per_update": "train_freq gradient_steps utd_ratio replay_ratio",
    "target_tau": "tau polyak",
    "target_every": "target_update_interval target_network_frequency target_update_freq",
    "epsilon": "exploration_final_eps exploration_fraction final_epsilon end_e",
    "actor_every": "policy_delay policy_frequency",
    "noise": "action_noise exploration_noise",
    "target_noise": "target_policy_noise policy_noise",
    "target_noise_clip": "noise_clip",
    "hidden": "net_arch hidden_sizes fcnet_hiddens actor_hidden_dims policy_kwargs",
    "activation": "activation_fn fcnet_activation",
    "num_worlds": "n_envs num_env num_actors",
    "num_envs": "n_envs num_env num_actors",
    "total_frames": "total_timesteps num_timesteps max_iterations",
    "id": "env_id task",
}
"""Options, and what Stable-Baselines3, CleanRL, RLlib, rsl_rl and Spinning Up call them."""


class ConfigError(ValueError):
    """A mistake in the configuration, reported in one line: which key, what is wrong, what is allowed."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class RunError(RuntimeError):
    """A run cannot continue although its configuration is valid; one line says what happened, and what to do.

    Attributes:
        details: text shown above that line, such as the traceback of a user's code in another process.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(" ".join(message.split()))
        self.details = details


@contextmanager
def prefixed(where: object) -> Iterator[None]:
    """Prefixes a :class:`ConfigError` raised inside the context with its origin: a file or a key."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def unknown_key(key: str, allowed: Iterable[Any], below: Sequence[str] = ()) -> str:
    """Returns the message for a key that does not exist among its ``allowed`` siblings.

    Args:
        below: dotted keys of groups that may be meant, such as ``agent.lr`` for ``lr``.
    """
    name, siblings = key.rpartition(".")[2], sorted(map(str, allowed))
    if not siblings:
        return f"{key}: unknown key, nothing is allowed here"
    places = {entry.rpartition(".")[2]: entry for entry in (*reversed(below), *siblings)}
    ours = [ours for ours, theirs in OF_OTHERS.items() if name in theirs.split() and ours in places]
    guess = _question([places[close] for close in ours or nearest(name, places)])
    return f"{key}: unknown key, {guess}allowed: {', '.join(siblings)}"


def missing_option(group: str, name: str, options: Sequence[str]) -> str:
    """Returns the message for a group option (``agent=nope``) that does not exist."""
    exists = ", ".join(sorted(options)) or "none"
    version = re.sub(r".*([-_]v)\d+", r"\1", name) if group == "env" else ""
    library = {"-v": "gymnasium", "_v": "pettingzoo"}.get(version)
    elsewhere = f"; {library}'s environments are env={library} env.id={name}" if library else ""
    return f"{group}: no option {name!r}, {did_you_mean(name, options)}available: {exists}{elsewhere}"


def did_you_mean(name: Any, candidates: Iterable[str]) -> str:
    """Returns ``"did you mean 'lr'? "`` with the closest candidate, or an empty string if none is close."""
    return _question(nearest(str(name), candidates))


def _question(close: Sequence[str]) -> str:
    return f"did you mean {' or '.join(map(repr, close))}? " if close else ""


def nearest(name: str, candidates: Iterable[str]) -> list[str]:
    """Returns the candidate that is spelt most alike, or up to three with such a part: ``lr_actor`` for ``lrr``."""
    known = {str(candidate).lower(): str(candidate) for candidate in candidates}
    if close := difflib.get_close_matches(name.lower(), known, n=1):
        return [known[close[0]]]
    parts: dict[str, list[str]] = {}
    for key, candidate in known.items():
        for part in set(re.split(r"[\W_]+", key)) - {""}:
            parts.setdefault(part, []).append(candidate)
    close = difflib.get_close_matches(name.lower(), parts, n=1, cutoff=0.75)
    return sorted(parts[close[0]])[:3] if close else []


def nearest_path(path: str | Path) -> str:
    """Returns ``", did you mean 'runs/ppo_arena'?"`` if a path similar to the first missing part of ``path`` exists."""
    path = Path(path)
    missing = next((part for part in (*reversed(path.parents), path) if not part.exists()), None)
    if missing is None or not missing.parent.is_dir():
        return ""
    close = nearest(missing.name, [entry.name for entry in missing.parent.iterdir()])
    return f", did you mean {str(missing.with_name(close[0]) / path.relative_to(missing))!r}?" if close else ""


@contextmanager
def writing(what: object) -> Iterator[None]:
    """A context that reports in one line that ``what`` cannot be written.

    Raises:
        ConfigError: in place of an ``OSError``.
    """
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{what} cannot be written ({error.strerror or error})") from None


# -- how a command ends --------------------------------------------------------------------------------------------


@contextmanager
def exit_in_one_line(
    explain: Callable[[Exception], str | None] = lambda error: str(error) if isinstance(error, ConfigError) else None,
) -> Iterator[None]:
    """Ends the process on a user's error with one line and no traceback; lets real bugs pass.

    With ``RLSTACK_FULL_ERROR=1`` the traceback of a user's error is shown, too. The process ends silently if its output
    is no longer read, for example before ``| head``.

    Args:
        explain: returns the line for an error, or None if the error is a bug.
    """
    # Standard streams that are closed (>&-) are opened to nowhere; the next file would get their numbers.
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    try:
        yield
        _flush()
    except SystemExit:
        _flush()
        raise
    except KeyboardInterrupt as interrupt:
        _exit(": ".join(filter(None, ("interrupted", str(interrupt)))), INTERRUPTED_STATUS)
    except RunError as error:
        if error.details:
            print(error.details, file=sys.stderr)
        _show_traceback()
        _exit(f"error: {error}", RUN_ERROR_STATUS)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and not _flush():
            raise SystemExit(UNREAD_STATUS) from None
        line = explain(error)
        if line is None:
            raise
        _show_traceback()
        _exit(f"error: {line}", USER_ERROR_STATUS)


def _flush() -> bool:
    """Flushes the output; if nothing reads it any more, discards it from then on and returns False."""
    try:
        sys.stdout.flush()
        output = select.poll()
        output.register(sys.stdout.fileno(), 0)
        if not any(events & (select.POLLERR | select.POLLHUP) for _, events in output.poll(0)):
            return True
    except BrokenPipeError:
        pass
    except (OSError, ValueError):  # not a real file, as in tests and notebooks
        return True
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return False


def _show_traceback() -> None:
    if os.environ.get("RLSTACK_FULL_ERROR") == "1":
        traceback.print_exc()


def _exit(line: str, status: int) -> NoReturn:
    _flush()
    if _speaks():
        print(line, file=sys.stderr, flush=True)
    raise SystemExit(status)


def _speaks() -> bool:
    """Decides which of several processes of a run (torchrun) reports an error: the first rank, if it has one.

    Before the processes are connected, all find the same errors.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return os.environ.get("RANK", "0") == "0"
    if distributed.get_rank() > 0:
        time.sleep(1)  # the files of other ranks are deleted, those of the first rank are where it says
    try:
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = distributed.TCPStore(*place, is_master=False, timeout=timedelta(seconds=10))
        return store.add(f"rlstack/failed/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", 1) == 1
    except RuntimeError:  # no other process is left to ask
        return True
