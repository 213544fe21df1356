"""Trained rows that the loss masks whole: how many are logged, and truncated ones are kept last."""

import pytest
import tiny
import torch
from recording import RecordingTrainer, make_trainer
from test_zero_variance import distance, train

from trl_pods import PODSGRPOConfig
from trl_pods.checks.learning_signal import PATIENCE


class RecordingOffPolicy(RecordingTrainer):
    """Records of how many rows the loss has no token, as a user's override sees it."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.frac_masked: list[float] = []

    def get_off_policy_mask(self, *args, **kwargs):
        mask = super().get_off_policy_mask(*args, **kwargs)
        self.frac_masked.append((mask == 0).float().mean().item())
        return mask


@pytest.mark.parametrize("num_rollouts", [4, 8])
def test_case_112_rows_masked_as_truncated_are_counted(num_rollouts, model_path, tmp_path):
    sizes = {"num_rollouts": num_rollouts, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    trainer = make_trainer(
        *(model_path, tiny.distinct_characters, tmp_path),
        **{"mask_truncated_completions": True, "max_completion_length": 24, "max_steps": 4, **sizes},
    )
    trainer.train()
    masked = [(inputs["completion_mask"].sum(dim=1) == 0).float().mean() for inputs in trainer.trained]
    expected = torch.stack(masked).view(4, 2).mean(dim=1)  # of two micro-batches
    assert trainer.logged("pods/frac_rows_masked") == pytest.approx(expected.tolist())
    assert 0 < expected.mean() < 1


@pytest.mark.parametrize("num_rollouts", [4, 8])
def test_case_112_rows_masked_as_off_policy_are_counted(num_rollouts, model_path, tmp_path):
    arguments = {"num_rollouts": num_rollouts, "num_iterations": 3, "learning_rate": 1e-2, "max_steps": 6}
    args = PODSGRPOConfig(**tiny.default_arguments(tmp_path, off_policy_mask_threshold=1e-3, **arguments))
    trainer = RecordingOffPolicy(model_path, tiny.distinct_characters, args, tiny.make_dataset())
    trainer.train()
    assert trainer.logged("pods/frac_rows_masked") == pytest.approx(trainer.frac_masked)
    assert trainer.frac_masked[0] == 0 < max(trainer.frac_masked)


def test_case_112_a_training_whose_rows_are_all_masked_is_warned_of(model_path, tmp_path, caplog):
    arguments = {"mask_truncated_completions": True, "max_completion_length": 1, "steps_per_generation": 2}
    arguments |= {"per_device_train_batch_size": 4, "max_steps": 2 * PATIENCE}
    make_trainer(model_path, tiny.distinct_characters, tmp_path, **arguments).train()
    [warning] = [line for line in caplog.messages if "no token in the loss" in line]
    assert f"in {PATIENCE} generation batches" in warning
    assert "raise `max_completion_length` (`mask_truncated_completions`)." in warning


@pytest.mark.parametrize("num_rollouts", [4, 12])
def test_prompts_whose_rows_are_all_masked_are_skipped_like_those_without_variance(
    num_rollouts, model_path, tmp_path, monkeypatch
):
    monkeypatch.setattr("trl.trainer.grpo_trainer.shuffle_sequence_dict", lambda batch: batch)

    def varies(completions, **kwargs):
        return [float(i % 5) for i, _ in enumerate(completions)]

    arguments = {"mask_truncated_completions": True, "max_completion_length": 5, "num_rollouts": num_rollouts}
    arguments |= {"reward": varies}
    trained, expected = train(model_path, tmp_path / "train", zero_variance="train", **arguments)
    trainer, found = train(model_path, tmp_path / "skip", **arguments)
    assert distance(found, expected) < 1e-6 < 1e-5 < trainer.moved
    assert sum(trainer.rows["policy"]) < sum(trained.rows["policy"])
    assert sum(trainer.logged("pods/frac_rows_masked")) < sum(trained.logged("pods/frac_rows_masked"))
