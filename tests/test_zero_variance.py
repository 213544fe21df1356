"""Prompts without reward variance: skipping them is training them, dropping them is GRPO on the others."""

import functools
import itertools
import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import commands
import pandas as pd
import pytest
import tiny
import torch
import trl.trainer.grpo_trainer as host
from peft import LoraConfig
from test_exactness import LOSS_TYPES, RecordingPODS, ReplayingGRPO
from trl import GRPOConfig, GRPOTrainer
from zero_variance_worker import OTHERS, SKIPPED

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer
from trl_pods.timing import PHASES

# 4 prompts per generation batch, in 4 micro-batches of one optimizer step.
# Adam would divide by gradients that are zero but for rounding, and so show the rounding.
SIZES = {"per_device_train_batch_size": 4, "steps_per_generation": 4, "max_steps": 4}
# Clipping would hide a wrong factor.
ONE_STEP = SIZES | {"gradient_accumulation_steps": 4, "optim": "sgd", "learning_rate": 0.005, "max_grad_norm": 0.0}


def varies_for_odd(completions, target, **kwargs) -> list[float]:
    """Prompts of an even number have no variance."""
    rewards = tiny.distinct_characters(completions)
    return [reward if number % 2 else 0.1 for reward, number in zip(rewards, target, strict=True)]


def equal(completions, **kwargs) -> list[float]:
    return [0.1] * len(completions)


def always_varies(completions, **kwargs) -> list[float]:
    return [zlib.crc32(f"{i}{text}".encode()) / 2**32 for i, text in enumerate(completions)]


def none_or_some_of_a_group(completions, target, **kwargs) -> list[float]:
    """Half of the rollouts of a prompt of odd number have the reward 1."""
    return [float(number % 2 and i % 2) for i, number in enumerate(target)]


def spread_of_one_in_four(target, **kwargs) -> list[float]:
    return [float(number % 4 == 1 and i % 2) for i, number in enumerate(target)]


def nearly_equal(completions, **kwargs) -> list[float]:
    return [1e5 + 0.03 * (i % 2) for i, _ in enumerate(completions)]


def spread_by_target(completions, target, **kwargs) -> list[float]:
    """The larger the number in the prompt, the more its rewards vary."""
    return [(number + 1) * (i % 2) for i, number in enumerate(target)]


class Counting(PODSGRPOTrainer):
    """Counts rows and tokens of the forward passes, and what is generated."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.rows = {"policy": [], "before": [], "generated": []}
        self.widths = []

    def _get_per_token_logps_and_entropies(self, model, input_ids, *args, **kwargs):
        if torch.is_grad_enabled() or self.model.training:
            self.rows["policy" if torch.is_grad_enabled() else "before"].append(len(input_ids))
        return super()._get_per_token_logps_and_entropies(model, input_ids, *args, **kwargs)

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        self.rows["generated"].append(len(prompt_ids))
        return super()._generate_single_turn(prompt_ids, *args, **kwargs)

    def logged(self, key: str) -> list[float]:
        return [entry[key] for entry in self.state.log_history if key in entry]


def make_trainer(
    model, output_dir, *, reward=varies_for_odd, lora=False, trainer_class=Counting, train_dataset=None, **arguments
):
    torch.manual_seed(0)  # before the adapter is made, which TRL 1.10 does not do
    config = PODSGRPOConfig if issubclass(trainer_class, PODSGRPOTrainer) else GRPOConfig
    return trainer_class(
        model=model,
        reward_funcs=reward,
        args=config(**tiny.default_arguments(output_dir, **ONE_STEP | arguments)),
        train_dataset=train_dataset or tiny.make_dataset(),
        peft_config=LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", lora_dropout=0.0) if lora else None,
    )


def train(*args, **arguments) -> tuple[PODSGRPOTrainer, dict[str, torch.Tensor]]:
    trainer = make_trainer(*args, **arguments)
    start = tiny.trained_parameters(trainer)
    trainer.train()
    end = tiny.trained_parameters(trainer)
    trainer.moved = max((end[name] - start[name]).abs().max().item() for name in end)
    return trainer, end


def distance(some: dict[str, torch.Tensor], others: dict[str, torch.Tensor]) -> float:
    return max((some[name] - others[name]).abs().max().item() for name in some)


@pytest.fixture
def in_order(monkeypatch):
    """The host deals the rows out in order: otherwise other rows come into a micro-batch."""
    monkeypatch.setattr(host, "shuffle_sequence_dict", lambda batch: batch)


COMBINATIONS = list(itertools.product(LOSS_TYPES, (4, 12), (False, True)))
USUAL = [*((loss, 12, False) for loss in LOSS_TYPES), ("grpo", 4, False), ("bnpo", 4, False), ("dapo", 4, True)]


@pytest.mark.feature("`zero_variance`, `prompt_oversampling`")
@pytest.mark.parametrize(
    ("loss_type", "num_rollouts", "lora"),
    [args if args in USUAL else pytest.param(*args, marks=pytest.mark.long) for args in COMBINATIONS],
)
def test_skip_is_train_for_every_loss(loss_type, num_rollouts, lora, model_path, tmp_path, in_order):
    arguments = {"loss_type": loss_type, "num_rollouts": num_rollouts, "lora": lora}
    trained, expected = train(model_path, tmp_path / "train", zero_variance="train", **arguments)
    skipping, found = train(model_path, tmp_path / "skip", **arguments)
    assert distance(found, expected) < 1e-6 < 1e-4 < skipping.moved
    assert sum(skipping.rows["policy"]) < sum(trained.rows["policy"]) == 16 * 4
    assert len(skipping.rows["policy"]) == len(trained.rows["policy"]) == 16
    assert skipping.rows["generated"] == trained.rows["generated"]
    assert skipping.logged("pods/trained_rows") == [sum(skipping.rows["policy"][i : i + 4]) for i in (0, 4, 8, 12)]


@pytest.mark.parametrize("num_rollouts", [4, 12])
@pytest.mark.parametrize("zero_variance", ["skip", "drop"])
def test_where_all_prompts_vary_nothing_changes(zero_variance, num_rollouts, model_path, tmp_path):
    """With the host's shuffle and its optimizer, in several optimizer steps per generation batch: the same bits."""
    arguments = {"reward": always_varies, "num_rollouts": num_rollouts, "optim": "adamw_torch"}
    arguments |= {"gradient_accumulation_steps": 1}
    _, expected = train(model_path, tmp_path / "train", zero_variance="train", **arguments)
    trainer, found = train(model_path, tmp_path / "other", zero_variance=zero_variance, **arguments)
    assert distance(found, expected) == 0 and trainer.moved > 1e-4
    if num_rollouts == 4:
        del arguments["num_rollouts"]
        _, expected = train(model_path, tmp_path / "grpo", trainer_class=GRPOTrainer, **arguments)
        assert distance(found, expected) == 0


@pytest.mark.parametrize("num_rollouts", [4, 12])
@pytest.mark.parametrize("zero_variance", ["skip", "drop"])
def test_where_no_prompt_varies_steps_are_made_without_a_gradient(zero_variance, num_rollouts, model_path, tmp_path):
    arguments = {"reward": equal, "num_rollouts": num_rollouts, "zero_variance": zero_variance}
    trainer, _ = train(model_path, tmp_path, **arguments)
    assert trainer.moved == 0
    assert trainer.state.global_step == 4
    assert trainer.logged("grad_norm") == [0.0] * 4
    assert trainer.logged("learning_rate") == pytest.approx([0.005, 0.00375, 0.0025, 0.00125])
    assert trainer.rows["policy"] == [1] * 16  # one prompt, which gives each micro-batch a row
    assert trainer.logged("pods/trained_rows") == [4.0] * 4


@pytest.mark.parametrize("scale_rewards", ["group", "batch", "none"])
def test_skip_is_train_for_every_scale(scale_rewards, model_path, tmp_path, in_order):
    arguments = {"scale_rewards": scale_rewards, "num_rollouts": 12}
    _, expected = train(model_path, tmp_path / "train", zero_variance="train", **arguments)
    trainer, found = train(model_path, tmp_path / "skip", **arguments)
    assert distance(found, expected) < 1e-6 < 1e-4 < trainer.moved
    assert sum(trainer.rows["policy"]) < 64


def test_skip_is_train_with_statistics_over_all_rollouts(model_path, tmp_path, in_order):
    """Prompts whose kept rollouts are equal, but not those they are compared with, have advantages."""
    arguments = {"advantage_statistics": "all", "num_rollouts": 12, "down_sampling": "max_reward"}
    arguments |= {"reward": none_or_some_of_a_group}
    _, expected = train(model_path, tmp_path / "train", zero_variance="train", **arguments)
    trainer, found = train(model_path, tmp_path / "skip", **arguments)
    assert distance(found, expected) < 1e-6 < 1e-4 < trainer.moved
    assert 16 < sum(trainer.rows["policy"]) < 64
    assert trainer.logged("pods/kept_frac_zero_std") == [1.0] * 4


def test_skip_is_train_with_masked_completions(model_path, tmp_path, in_order):
    arguments = {"mask_truncated_completions": True, "max_completion_length": 24, "num_rollouts": 12}
    _, expected = train(model_path, tmp_path / "train", zero_variance="train", **arguments)
    trainer, found = train(model_path, tmp_path / "skip", **arguments)
    assert distance(found, expected) < 1e-6 < 1e-5 < trainer.moved
    assert sum(trainer.rows["policy"]) < 64


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ({"beta": 0.1}, "`beta` is not 0"),
        ({"entropy_coef": 0.01}, "`entropy_coef` is not 0"),
        ({"use_adaptive_entropy": True}, "`use_adaptive_entropy` is on"),
        ({"top_entropy_quantile": 0.5}, "`top_entropy_quantile` is below 1"),
        ({"multi_objective_aggregation": "normalize_then_sum"}, "is 'normalize_then_sum'"),
    ],
)
def test_skip_trains_rows_that_have_an_effect_and_says_why(option, reason, model_path, tmp_path, caplog):
    caplog.set_level("INFO", "trl_pods")
    arguments = {"num_rollouts": 12, "max_steps": 2, **option}
    _, expected = train(model_path, tmp_path / "train", zero_variance="train", **arguments)
    assert not [line for line in caplog.messages if "zero_variance" in line]
    trainer, found = train(model_path, tmp_path / "skip", **arguments)
    assert distance(found, expected) == 0 and trainer.rows["policy"] == [4] * 8
    assert [reason in line for line in caplog.messages if "zero_variance" in line] == [True]


def test_another_loss_than_that_of_grpo_is_not_skipped(model_path, tmp_path, caplog):
    class Host(GRPOTrainer):
        def _compute_loss(self, model, inputs):
            return super()._compute_loss(model, inputs)

    class Pods(Counting, Host):
        pass

    caplog.set_level("INFO", "trl_pods")
    trainer, _ = train(model_path, tmp_path, trainer_class=Pods, max_steps=1)
    assert trainer.rows["policy"] == [4] * 4
    assert [line for line in caplog.messages if "`Host` has an update of its own" in line]


@pytest.mark.parametrize(("loss_type", "scale_rewards"), [("grpo", "group"), ("dapo", "group"), ("dapo", "batch")])
def test_drop_does_not_count_the_rows_that_fill_up_micro_batches(loss_type, scale_rewards, model_path, tmp_path):
    """The same rows in one micro-batch and in eight, which need two prompts or four, where one of four varies."""
    arguments = {"loss_type": loss_type, "scale_rewards": scale_rewards, "zero_variance": "drop", "max_steps": 1}
    arguments |= {"reward": spread_of_one_in_four, "shuffle_dataset": False, "num_rollouts": 4}
    found = {}
    for num_micro_batches in (1, 8, 16):
        sizes = {"per_device_train_batch_size": 16 // num_micro_batches, "steps_per_generation": num_micro_batches}
        sizes |= {"gradient_accumulation_steps": num_micro_batches}
        trainer, found[num_micro_batches] = train(model_path, tmp_path, **arguments | sizes)
        assert sum(trainer.rows["policy"]) == {1: 4, 8: 8, 16: 16}[num_micro_batches] and trainer.moved > 1e-4
    assert distance(found[8], found[1]) < 1e-6 and distance(found[16], found[1]) < 1e-6


@pytest.mark.parametrize("num_rollouts", [4, 12])
def test_rewards_that_differ_a_little_are_trained(num_rollouts, model_path, tmp_path):
    """By less than a rounding of large rewards: their advantages are as large as any."""
    arguments = {"reward": nearly_equal, "num_rollouts": num_rollouts, "max_steps": 1}
    _, expected = train(model_path, tmp_path / "train", zero_variance="train", **arguments)
    trainer, found = train(model_path, tmp_path / "skip", **arguments)
    assert distance(found, expected) == 0 and trainer.moved > 1e-4 and trainer.rows["policy"] == [4] * 4


def test_advantages_of_tokens_are_weighted_by_row(model_path, tmp_path):
    """A subclass in front may give each token an advantage, as in TRL, and so may the host."""

    class OfTokens(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            shape = output["completion_ids"].shape
            return output | {"advantages": output["advantages"].unsqueeze(1).expand(shape).clone()}

    class Pods(Counting, OfTokens):
        pass

    _, expected = train(model_path, tmp_path / "rows", zero_variance="drop", max_steps=1)
    trainer, found = train(model_path, tmp_path / "tokens", trainer_class=Pods, zero_variance="drop", max_steps=1)
    assert distance(found, expected) < 1e-6 and sum(trainer.rows["policy"]) < 16


@pytest.mark.parametrize("zero_variance", ["train", "drop"])
def test_drop_is_grpo_on_the_prompts_that_vary(zero_variance, model_path, tmp_path):
    """Plain GRPO whose batch is the kept rows of the two prompts of four that vary; with `train` it is not."""
    arguments = {"shuffle_dataset": False, "optim": "adamw_torch", "loss_type": "grpo"}
    pods, found = train(
        *(model_path, tmp_path / "pods"),
        **{"trainer_class": RecordingPODS, "num_rollouts": 12, "zero_variance": zero_variance},
        **arguments,
    )
    recorded = [rows_that_vary(*batch) for batch in pods.recorded]
    arguments |= {"per_device_train_batch_size": 2, "train_dataset": tiny.make_dataset().select(range(1, 16, 2))}
    grpo = make_trainer(model_path, tmp_path / "grpo", trainer_class=ReplayingGRPO, **arguments)
    grpo.replay = recorded
    grpo.train()
    assert len(recorded) == 4 and {len(rows[0]) for rows in recorded} == {8}
    assert (distance(found, tiny.trained_parameters(grpo)) < 1e-7) == (zero_variance == "drop")


def rows_that_vary(prompt_ids: list, completion_ids: list) -> tuple[list, list]:
    tokenizer = tiny.make_tokenizer()
    varies = [int(tokenizer.decode(ids).split()[-1]) % 2 for ids in prompt_ids]
    return tuple([ids for ids, own in zip(column, varies) if own] for column in (prompt_ids, completion_ids))


@pytest.mark.parametrize("num_iterations", [1, 2])
def test_log_probs_before_the_update_are_of_its_rows(num_iterations, model_path, tmp_path):
    arguments = {"num_iterations": num_iterations, "gradient_accumulation_steps": 2, "max_steps": 8}
    trainer, _ = train(model_path, tmp_path, **arguments)
    trained = [sum(trainer.rows["policy"][i : i + 4]) for i in range(0, 16, 4 * num_iterations)]
    assert trained == trainer.logged("pods/trained_rows")
    assert sum(trainer.rows["before"]) == sum(trained) < 16 * len(trained)


def test_samples_are_those_of_a_run_that_trains_all(model_path, tmp_path):
    """The host shuffles fewer rows, but draws as many random numbers."""

    class Sampling(Counting):
        def _generate_single_turn(self, *args, **kwargs):
            self.sampled = [
                *getattr(self, "sampled", []),
                (generated := super()._generate_single_turn(*args, **kwargs))[0],
            ]
            return generated

    arguments = {"trainer_class": Sampling, "num_rollouts": 12, "learning_rate": 1e-9}
    expected, _ = train(model_path, tmp_path / "train", zero_variance="train", **arguments)
    for zero_variance in ("skip", "drop"):
        found, _ = train(model_path, tmp_path / zero_variance, zero_variance=zero_variance, **arguments)
        assert found.sampled == expected.sampled


def test_the_table_says_what_was_trained(model_path, tmp_path):
    trainer, _ = train(model_path, tmp_path, num_rollouts=12, log_completions=True)
    for step, file in enumerate(sorted((tmp_path / "completions").glob("*.parquet"))):
        table = pd.read_parquet(file)
        assert table["kept"].sum() == 16
        assert table["trained"].sum() == trainer.logged("pods/trained_rows")[step] < 16
        assert table["kept"][table["trained"]].all()
        assert (table["advantage"].notna() == table["trained"]).all()
        advantages = table[table["trained"]].groupby("prompt")["advantage"]
        assert advantages.sum().abs().max() < 1e-4 and advantages.std().max() == pytest.approx(1, abs=1e-3)


# More prompts than are trained


def test_oversampled_prompts_of_largest_variance_are_trained(model_path, tmp_path):
    trainer, _ = train(
        *(model_path, tmp_path),
        **{"reward": spread_by_target, "num_rollouts": 12, "prompt_oversampling": 2, "log_completions": True},
    )
    assert trainer.rows["generated"] == [8 * 12] * 4
    assert trainer.rows["policy"] == [4] * 16
    assert trainer.logged("pods/frac_prompts_trained") == [0.5] * 4
    assert trainer.state.epoch == 2  # of 16 prompts, in generation batches of 8
    seen = []
    for file in sorted((tmp_path / "completions").glob("*.parquet")):
        table = pd.read_parquet(file)
        prompts = table["prompt"].unique()
        seen.append(set(prompts))
        numbers = sorted(int(prompt.split()[-1]) for prompt in prompts)
        trained = {int(prompt.split()[-1]) for prompt in table["prompt"][table["trained"]]}
        assert trained == set(numbers[-4:])
    assert [len(batch) for batch in seen] == [8] * 4
    assert len(seen[0] | seen[1]) == len(seen[2] | seen[3]) == 16, "an epoch has lost a prompt"


def test_oversampled_prompts_that_do_not_vary_are_skipped(model_path, tmp_path):
    trainer, _ = train(model_path, tmp_path, num_rollouts=12, prompt_oversampling=1.5, zero_variance="drop")
    assert trainer.rows["generated"] == [6 * 12] * 4
    found = trainer.logged("pods/frac_prompts_trained")
    assert found == pytest.approx([rows / 4 / 6 for rows in trainer.logged("pods/trained_rows")])


def test_an_iterable_dataset_is_oversampled(model_path, tmp_path):
    data = tiny.make_dataset().to_iterable_dataset()
    arguments = {"num_rollouts": 12, "prompt_oversampling": 2, "max_steps": 2}
    trainer, _ = train(model_path, tmp_path, train_dataset=data, **arguments)
    assert trainer.rows["generated"] == [96, 96]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"zero_variance": "ignore"}, "`zero_variance` is 'ignore', but it must be 'train', 'skip' or 'drop'"),
        ({"prompt_oversampling": 0.5}, "`prompt_oversampling` is 0.5, but it must be a number, 1 or more"),
        ({"prompt_oversampling": "2"}, "`prompt_oversampling` is '2'"),
        ({"prompt_oversampling": float("nan")}, "`prompt_oversampling` is nan"),
    ],
)
def test_values_that_make_no_sense_are_refused(options, message, tmp_path):
    with pytest.raises(ValueError, match=re.escape(message)):
        PODSGRPOConfig(**tiny.default_arguments(tmp_path, **options))


def test_more_prompts_than_the_dataset_has_are_refused(model_path, tmp_path):
    with pytest.raises(
        ValueError, match=r"`train_dataset` has 16 prompts, but one generation batch takes 20 .*`prompt_ov"
    ):
        make_trainer(model_path, tmp_path, prompt_oversampling=5).train()


def test_prompts_that_do_not_divide_over_processes_are_refused_with_values_that_work(tmp_path, monkeypatch):
    monkeypatch.setattr(PODSGRPOConfig, "world_size", 4)
    arguments = tiny.default_arguments(tmp_path, num_rollouts=5, per_device_train_batch_size=3)  # 3 prompts
    with pytest.raises(ValueError, match=r"`num_rollouts` is 5: 5 prompts .*over 4 processes") as refused:
        PODSGRPOConfig(**arguments | {"prompt_oversampling": 1.5})
    advice = float(re.search(r"`prompt_oversampling` ([0-9.]+)\.$", str(refused.value))[1])
    assert PODSGRPOConfig(**arguments | {"prompt_oversampling": advice}).prompt_oversampling > 2.6


def test_cost_ratio_is_the_price_of_a_row_in_rollouts(model_path, tmp_path):
    arguments = {"num_rollouts": 12, "reward": always_varies, "num_iterations": 2, "gradient_accumulation_steps": 2}
    trainer, _ = train(model_path, tmp_path, **arguments, max_steps=4)  # one generation batch
    seconds = {phase: sum(trainer.logged(f"pods/time/{phase}")) for phase in PHASES}
    per_row = (seconds["update"] + seconds["logps"]) / 16
    per_rollout = (seconds["generate"] + seconds["reward"]) / 48
    assert trainer.logged("pods/cost_ratio")[-1] == pytest.approx(per_row / per_rollout, rel=1e-3)


# Several processes


QUICK = [(2, case) for case in ("bnpo_6", "dapo_4")]  # the worker's cases
LONG = [(2, case) for case in SKIPPED if (2, case) not in QUICK] + [(4, case) for case in SKIPPED]


@pytest.fixture(scope="module")
def results(request, model_path, tmp_path_factory) -> Callable[[int], Path]:
    """Folder with the results of a number of processes, which train all cases of the chosen tests at once."""
    with_long = any(item.get_closest_marker("long") for item in request.session.items)

    @functools.cache
    def trained_by(num_processes: int) -> Path:
        folder = tmp_path_factory.mktemp(f"by_{num_processes}")
        cases = [case for number, case in [*QUICK, *(LONG if with_long else [])] if number == num_processes]
        worker = Path(__file__).with_name("zero_variance_worker.py")
        commands.torchrun(worker, model_path, folder, num_processes, *cases, *OTHERS, num_processes=num_processes)
        return folder

    return trained_by


def load(results, num_processes: int, case: str, zero_variance: str) -> tuple[list[int], list[dict], dict]:
    """The rows of each micro-batch, equal on all processes, the log, and the parameters."""
    name = f"{case}.{zero_variance}.{num_processes}"
    ranks = [json.loads((results(num_processes) / f"{name}.{r}.json").read_text()) for r in range(num_processes)]
    rows = [[len(batch) for batch in rank["trained"]] for rank in ranks]
    assert all(own == rows[0] for own in rows), "a process has other rows, so that the sizes of the batches differ"
    return rows[0], ranks[0]["log"], torch.load(results(num_processes) / f"{name}.pt")


WORLD_SIZES = [2, pytest.param(4, marks=pytest.mark.long)]


@pytest.mark.parametrize(
    ("num_processes", "case"), [*QUICK, *(pytest.param(*args, marks=pytest.mark.long) for args in LONG)]
)
def test_skip_is_train_on_several_processes(num_processes, case, results):
    all_rows, _, expected = load(results, num_processes, case, "train")
    rows, log, found = load(results, num_processes, case, "skip")
    assert distance(found["end"], expected["end"]) < 1e-6 < 1e-4 < distance(found["end"], found["start"])
    assert len(rows) == len(all_rows) == 8 and set(all_rows) == {16 // num_processes}
    assert sum(rows) < sum(all_rows)
    per_step = [num_processes * (first + second) for first, second in zip(rows[::2], rows[1::2], strict=True)]
    assert [entry["pods/trained_rows"] for entry in log] == per_step


@pytest.mark.parametrize("num_processes", WORLD_SIZES)
def test_samples_are_those_of_a_run_that_trains_all_where_a_process_has_one_row(num_processes, results):
    ranks = [
        {
            zero_variance: json.loads(
                (results(num_processes) / f"sampled.{zero_variance}.{num_processes}.{rank}.json").read_text()
            )
            for zero_variance in ("train", "skip")
        }
        for rank in range(num_processes)
    ]
    for found in ranks:
        assert found["skip"]["sampled"] == found["train"]["sampled"] and len(found["skip"]["sampled"]) == 4
        assert {len(batch) for batch in found["skip"]["trained"]} == {1}


@pytest.mark.parametrize("num_processes", WORLD_SIZES)
def test_drop_and_oversampling_and_nothing_to_train_on_several_processes(num_processes, results):
    rows, log, _ = load(results, num_processes, "dropped", "drop")
    assert sum(rows) < 8 * 16 // num_processes
    _, log, _ = load(results, num_processes, "oversampled", "skip")
    assert [entry["pods/frac_prompts_trained"] for entry in log] == pytest.approx(
        [entry["pods/trained_rows"] / 4 / 12 for entry in log]  # of 12 prompts that are sampled
    )
    rows, log, parameters = load(results, num_processes, "none_varies", "skip")
    assert len(log) == 4 and {entry["grad_norm"] for entry in log} == {0.0}
    assert distance(parameters["end"], parameters["start"]) == 0
    # The fewest that give each process a row in each of its two micro-batches, in whole groups of 4.
    assert set(rows) == {max(4 // (2 * num_processes), 1)}


@pytest.mark.long
def test_skip_is_train_in_expectation_over_several_optimizer_steps(model_path, tmp_path):
    """Of one generation batch, 4 optimizer steps long enough for their order to matter, over 64 shuffles."""

    class Shuffled(Counting):
        seed = 0

        def _narrow(self, *args):
            narrowed = super()._narrow(*args)
            torch.manual_seed(self.seed)
            return narrowed

    arguments = {"gradient_accumulation_steps": 1, "max_steps": 4, "learning_rate": 0.2, "num_rollouts": 12}
    arguments |= {"trainer_class": Shuffled, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    ends = {}
    for zero_variance in ("train", "skip"):
        found = []
        for Shuffled.seed in range(64):
            trainer, end = train(model_path, tmp_path, zero_variance=zero_variance, **arguments)
            found.append(torch.cat([parameter.flatten() for parameter in end.values()]).double())
        ends[zero_variance] = torch.stack(found)
    assert sum(trainer.rows["policy"]) < 16
    difference = ends["skip"].mean(dim=0) - ends["train"].mean(dim=0)
    noise = sum(end.var(dim=0) / len(end) for end in ends.values()).sum().sqrt()
    spread = ends["skip"].std(dim=0).norm()
    print(f"shuffles differ by {spread:.3g}, means by {difference.norm():.3g}, noise {noise:.3g}")
    assert difference.norm() < 1.5 * noise < spread / 3
