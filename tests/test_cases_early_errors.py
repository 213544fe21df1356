"""Mistakes that are found when the trainer is built, or when training or a dry run starts, and not later."""

import inspect
import re

import pytest
import tiny
from recording import make_trainer
from transformers import LlamaForSequenceClassification
from trl import GRPOTrainer

from trl_pods import PODSGRPOConfig, PODSGRPOTrainer
from trl_pods.checks.options import CHOICES


@pytest.fixture(params=[4, 8], ids=["all", "down-sampled"])
def build(request, model_path, tmp_path):
    """Builds a trainer of the tiny model, with as many rollouts as are trained or with more."""

    def build(reward_funcs=tiny.distinct_characters, **arguments):
        return make_trainer(model_path, reward_funcs, tmp_path, **{"num_rollouts": request.param} | arguments)

    return build


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"generation_kwargs": {"num_return_sequences": 2}}, "'num_return_sequences' to 2.*Set that instead"),
        ({"generation_kwargs": {"tempreature": 0.5}}, "'tempreature' to 0.5.*Did you mean 'temperature'"),
        ({"generation_kwargs": {"n": 2}}, "sets 'n' to 2, but generation has no such option"),
        ({"generation_kwargs": {"max_new_tokens": 9}}, r"'max_new_tokens' to 9.*`max_completion_length` \(6\)"),
        ({"generation_kwargs": {"max_length": 9}}, r"'max_length' to 9.*`max_completion_length` \(6\)"),
        ({"generation_kwargs": {"temperature": 0}}, "'temperature' to 0, but it must be a number above 0"),
        ({"generation_kwargs": {"temperature": None}}, "'temperature' to None, but it must be a number above 0"),
        ({"temperature": -1}, "`temperature` is -1, but it must be a number above 0"),
    ],
)
def test_case_109_what_generation_does_not_take_is_refused(arguments, message, build):
    with pytest.raises(ValueError, match=message):
        build(**arguments)


def test_case_109_a_rollout_func_may_have_options_of_its_own(build):
    def rollout_func(prompts, trainer):
        raise NotImplementedError

    trainer = build(rollout_func=rollout_func, generation_kwargs={"beams_of_my_engine": 2})
    assert trainer.args.generation_kwargs == {"beams_of_my_engine": 2}


@pytest.mark.parametrize("name", CHOICES)
def test_case_110_a_value_that_an_option_does_not_have_is_refused(name, model_path, tmp_path):
    right = CHOICES[name][1][0]
    wrong = right[:-2] + "xx"
    args = PODSGRPOConfig(**tiny.default_arguments(tmp_path, **{name: wrong}))
    with pytest.raises(ValueError, match=f"`{name}` is '{wrong}', but it must be one of .*{right}"):
        PODSGRPOTrainer(model_path, tiny.distinct_characters, args, tiny.make_dataset())


def test_case_110_a_trainer_with_a_loss_of_its_own_knows_its_values(model_path, tmp_path):
    class Own(GRPOTrainer):
        def _compute_loss(self, model, inputs): ...

    class OwnPODS(PODSGRPOTrainer, Own):
        pass

    args = PODSGRPOConfig(**tiny.default_arguments(tmp_path, loss_type="own"))
    assert OwnPODS(model_path, tiny.distinct_characters, args, tiny.make_dataset()).loss_type == "own"
    args.scale_rewards = "own"
    with pytest.raises(ValueError, match="`scale_rewards` is 'own'"):
        OwnPODS(model_path, tiny.distinct_characters, args, tiny.make_dataset())


@pytest.mark.parametrize("name", CHOICES)
def test_case_110_the_values_are_those_that_trl_compares_with(name):
    method, values = CHOICES[name]
    source = inspect.getsource(getattr(GRPOTrainer, method))
    compared = re.findall(rf"self\.{name} (?:==|!=|in) (\[.*?\]|\".*?\")", source)
    assert {value for text in compared for value in re.findall(r'"(\w+)"', text)} == set(values)


def test_case_115_a_model_without_a_name_says_what_to_pass(tmp_path):
    tokenizer = tiny.make_tokenizer()
    model = tiny.make_model(tokenizer)
    judge = LlamaForSequenceClassification(model.config)

    def build(reward_funcs=tiny.distinct_characters, beta=0.0, **arguments):
        args = PODSGRPOConfig(**tiny.default_arguments(tmp_path, beta=beta))
        return PODSGRPOTrainer(model, reward_funcs, args, tiny.make_dataset(), **arguments)

    with pytest.raises(ValueError, match=r"`processing_class` has no tokenizer for `model`, a `LlamaForCausalLM`"):
        build()
    with pytest.raises(ValueError, match=r"`beta` is 0.1, for which TRL loads the model a second time"):
        build(beta=0.1, processing_class=tokenizer)
    with pytest.raises(ValueError, match=r"`reward_processing_classes` has no tokenizer for the reward model 1"):
        build([tiny.distinct_characters, judge], processing_class=tokenizer)
    build(processing_class=tokenizer)
