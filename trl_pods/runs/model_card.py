"""The model card: what PODS did in the run, and a base model that is not on the Hub."""

from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from peft import PeftModel
from trl import GRPOTrainer

PAPER = {
    "title": "Not All Rollouts are Useful: Down-Sampling Rollouts in LLM Reinforcement Learning",
    "id": "2504.13818",
    # In one with GRPO's, which PODS builds on.
    "citation": (
        "@article{xu2025pods,\n"
        "    title        = {{Not All Rollouts are Useful: Down-Sampling Rollouts in LLM Reinforcement Learning}},\n"
        "    author       = {Yixuan Even Xu and Yash Savani and Fei Fang and Zico Kolter},\n"
        "    year         = 2025,\n"
        "    eprint       = {arXiv:2504.13818},\n"
        "}\n\n" + GRPOTrainer._paper["citation"]
    ),
}


def complete_model_card(path: Path, model_name: str, trainer: Any) -> None:
    """
    Complete the card that TRL wrote: say what was sampled and kept, and replace the `None` that TRL writes for a base
    model from a folder and for a model that has no place on the Hub.
    """
    card = ModelCard.load(path)
    if isinstance(trainer.accelerator.unwrap_model(trainer.model), PeftModel):
        card.data.library_name = "peft"
    heading = "### Framework versions"
    text = card.text.replace("[None](https://huggingface.co/None)", _local_base_model(trainer.model.config))
    text = text.replace('model="None"', f'model="{model_name}"')
    before, found, after = text.partition(heading)
    card.text = f"{before}{_describe_run(trainer.args)}\n\n{found}{after}"
    card.save(path)


def _local_base_model(config: Any) -> str:
    name = Path(config._name_or_path).name
    return f"the local model `{name}`" if name else "a model that was not loaded from the Hub"


def _describe_run(args: Any) -> str:
    paper = GRPOTrainer._paper
    grpo = f"[{paper['title']}](https://huggingface.co/papers/{paper['id']})"
    return (
        f"Of each prompt, {args.num_rollouts} completions were sampled (`num_rollouts`) and {args.num_generations} of "
        f"them were kept (`num_generations`) by the strategy `{args.down_sampling}` (`down_sampling`). The kept ones "
        f"were trained on with GRPO, introduced in {grpo}; those of prompts whose rewards are equal: "
        f"`{args.zero_variance}` (`zero_variance`)."
    )
