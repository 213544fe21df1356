"""The reward functions: TRL's own as the oracle of accuracy, and every form of completion that TRL passes."""

import json
import subprocess
import sys
import threading

import pytest
import reasoning_gym
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from reasoning_gym.factory import DATASETS
from trl import GRPOConfig, GRPOTrainer
from trl import rewards as trl_rewards

from trl_pods.answers import last_boxed
from trl_pods.rewards import REWARDS, accuracy_reward, format_reward, reasoning_gym_reward, tag_count_reward

WELL_FORMED = "<think>2 and 2</think>\n<answer>4</answer>"
ENTRY = json.dumps({"question": "2 + 2 =", "answer": "4", "metadata": {}})

FRAGMENTS = ["<think>", "</think>", "<answer>", "</answer>", "#### ", r"\boxed{", "}", r"\frac", "$", "1,234", "5%"]
odd_texts = st.lists(st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=20)), max_size=8).map("".join)


def messages(text: str) -> list[dict]:
    return [{"role": "assistant", "content": text}]


# Accuracy


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("1,234", "1234"),
        ("1234", "$1,234.00"),
        ("1234567", "1 234 567"),
        ("1234", r"1{,}234"),
        ("72", "72."),
        ("72", "**72**"),
        ("5", r"\$5"),
        ("-5", "-$5"),
        ("5", "5 dollars"),
        ("5", "$x = 5$"),
        ("50", "50%"),
        (r"50\%", "0.5"),
        (r"\frac{1}{2}", "0.5"),
        ("1/2", "0.5"),
        ("1.5", "1 1/2"),
        (r"\text{Monday}", "monday"),
        ("A", "(A)"),
        (r"2\sqrt{3}", r"\sqrt{12}"),
        ("(1,2)", "$(1, 2)$"),
        ("x^2+1", "1+x^2"),
    ],
)
def test_answers_written_in_another_way_are_right(gold, answer):
    assert accuracy_reward([answer, f"It is <answer>{answer}</answer>."], [gold] * 2) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("2", r"2\sqrt{3}"),
        (r"2\sqrt{3}", "2"),
        ("1", "1 1/2"),
        ("Monday", "dynamo"),
        ("A", "B"),
        ("72", "720"),
        ("5", ""),
    ],
)
def test_other_answers_are_wrong(gold, answer):
    assert accuracy_reward([answer], [gold]) == [0.0]


@pytest.mark.parametrize(
    "completion",
    [
        r"\boxed{1} <answer>1</answer> <answer>72</answer> #### 1",
        r"\boxed{1} #### 1 #### 72",
        r"\boxed{1}, no, $\boxed{72}$, and \boxed{7",
        r"<answer>It is \boxed{72}, not 1.</answer>",
        "#### Final answer\n\n72",
        "The final answer is $72$.",
        "72",
    ],
)
def test_the_answer_is_looked_for_in_order(completion):
    assert accuracy_reward([completion], ["72"]) == [1.0]


@pytest.mark.parametrize(
    "solution", ["3 * 24 = <<3*24=72>>72\n#### 72", r"Add them: $1 + 71 = \boxed{72}$.", r"\fbox{72}", "72", 72]
)
def test_solutions_of_known_data_sets_are_read(solution):
    assert accuracy_reward(["<answer>72</answer>", "<answer>71</answer>"], [solution] * 2) == [1.0, 0.0]


@pytest.mark.parametrize("solution", [None, "", "  ", "???", "there is no answer in this"])
def test_a_solution_that_cannot_be_read_is_skipped(solution):
    assert accuracy_reward(["72", ""], [solution, solution]) == [None, None]


@pytest.mark.parametrize(
    ("completion", "solution"),
    [
        (r"so it is $\boxed{\frac{1}{3}}$", r"\frac{1}{3}"),
        (r"\boxed{0.5}", r"\frac{1}{2}"),
        (r"\boxed{1,234}", "1234"),
        (r"\boxed{13}", "12"),
        (r"\boxed{x=5}", "$x=5$"),
        (r"\boxed{50\%}", r"$50\%$"),
        (r"\boxed{(1,2)}", "$(1,2)$"),
        ("the final answer is $12$", "12"),
        ("no answer", "12"),
        ("", "12"),
        (r"\boxed{12}", "there is no answer"),
    ],
)
def test_accuracy_agrees_with_trl(completion, solution):
    expected = trl_rewards.accuracy_reward([messages(completion)], [solution])
    assert accuracy_reward([messages(completion)], [solution]) == expected
    assert accuracy_reward([completion], [solution]) == expected


@settings(deadline=None, max_examples=60)
@given(odd_texts, odd_texts)
def test_no_text_makes_accuracy_raise(completion, solution):
    [reward] = accuracy_reward([completion], [solution])
    assert reward in (None, 0.0, 1.0)
    assert accuracy_reward([completion], ["72"]) in ([0.0], [1.0])


def test_accuracy_works_outside_the_main_thread_without_warnings(caplog):
    rewards = []
    thread = threading.Thread(target=lambda: rewards.extend(accuracy_reward(["72", "71"], ["72"] * 2)))
    thread.start()
    thread.join()
    assert rewards == [1.0, 0.0]
    assert not caplog.records


def test_what_was_compared_is_logged():
    logged = {}
    accuracy_reward(["<answer>71</answer>", ""], ["#### 72", None], log_extra=logged.__setitem__)
    assert logged == {"gold": ["72", ""], "answer": ["71", ""]}


def test_a_missing_math_verify_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)  # what `import` then refuses
    with pytest.raises(ImportError, match=r"`accuracy_reward` needs math-verify.*pip install 'trl-pods\[math\]'"):
        accuracy_reward(["72"], ["72"])


@given(st.text("ab{}\\ $"), st.lists(st.text("ab\\{}x")))
def test_last_boxed_finds_what_was_boxed_last(content, parts):
    balanced = content.replace("\\", "").replace("{", "").replace("}", "") + "{" + "}"
    assert last_boxed("".join(parts) + r" \boxed{" + balanced + "} and so on") == balanced.strip()


@pytest.mark.parametrize("text", ["", "72", r"\boxed{72", r"\boxed 72", r"\boxed{\{72\}"])
def test_last_boxed_finds_no_box_that_is_not_closed(text):
    assert last_boxed(text) is None


# Format


@pytest.mark.parametrize(
    ("completion", "is_right", "tag_count"),
    [
        (WELL_FORMED, 1.0, 1.0),
        (f"\n {WELL_FORMED} \n", 1.0, 1.0),
        ("<think></think><answer></answer>", 1.0, 1.0),
        (f"{WELL_FORMED} Thanks!", 0.0, 1.0),
        (f"Sure! {WELL_FORMED}", 0.0, 1.0),
        ("<answer>4</answer><think>2 and 2</think>", 0.0, 1.0),
        ("<think>2 and 2</think> 4", 0.0, 0.5),
        ("2 and 2</think><answer>4</answer>", 0.0, 0.75),
        (f"{WELL_FORMED}<answer>4</answer>", 0.0, 0.5),
        ("<think><think>2 and 2</think><answer>4</answer>", 0.0, 0.75),
        ("4", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_format_and_tags(completion, is_right, tag_count):
    for completions in ([completion], [messages(completion)]):
        assert format_reward(completions) == [is_right]
        assert tag_count_reward(completions) == [tag_count]


@pytest.mark.parametrize(
    ("prompt", "is_prefilled"),
    [
        ("What is 2 + 2? <think>\n", True),
        ("What is 2 + 2?", False),
        ([{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "<think>"}], True),
        ([{"role": "user", "content": "Begin with <think>"}], False),
        ([], False),
    ],
)
def test_a_thought_that_the_prompt_opens_need_not_be_opened_again(prompt, is_prefilled):
    completions = ["2 and 2</think><answer>4</answer>", WELL_FORMED, "</think></think><answer>4</answer>"]
    assert format_reward(completions, prompts=[prompt] * 3) == [float(is_prefilled), 1.0, 0.0]
    assert tag_count_reward(completions, prompts=[prompt] * 3)[:2] == [1.0 if is_prefilled else 0.75, 1.0]


@given(odd_texts, odd_texts)
def test_right_format_means_all_tags(completion, prompt):
    [is_right], [tags] = (f([completion], prompts=[prompt]) for f in (format_reward, tag_count_reward))
    assert is_right in (0.0, 1.0) and tags in (0.0, 0.25, 0.5, 0.75, 1.0)
    assert is_right <= tags


@pytest.mark.parametrize(
    "completion",
    [
        [
            {"role": "assistant", "content": None, "tool_calls": []},
            {"role": "tool", "content": "4"},
            *messages(WELL_FORMED),
        ],
        [*messages(WELL_FORMED), {"role": "tool", "content": "4"}],
        [{"content": WELL_FORMED}],
        [{"role": "assistant", "content": [{"type": "text", "text": WELL_FORMED}]}],
    ],
)
def test_the_last_message_of_the_assistant_counts(completion):
    assert format_reward([completion]) == [1.0]
    assert accuracy_reward([completion], ["4"]) == [1.0]


@pytest.mark.parametrize("completion", [[], messages(None), [{"role": "tool", "content": WELL_FORMED}]])
def test_completions_without_text_earn_nothing(completion):
    assert format_reward([completion]) == tag_count_reward([completion]) == [0.0]
    assert accuracy_reward([completion], ["4"]) == [0.0]


# reasoning-gym


# `composite` is none by itself, and `arc_agi` leaves a file open, which Python warns of.
@pytest.mark.parametrize("task", sorted(DATASETS.keys() - {"composite", "arc_agi"}))
def test_every_task_of_reasoning_gym_scores_its_own_answer_and_rubbish(task):
    entry = reasoning_gym.create_dataset(task, size=1, seed=0)[0]
    score_answer = reasoning_gym.get_score_answer_fn(task)
    as_json = json.dumps(entry, default=str)
    if not isinstance(entry["answer"], str):
        pytest.skip("the task has many right answers and shows none")
    rubbish = ["", "rubbish", "1(2)", "[[", "{}", "1/0", "<answer></answer>", "é\x00"]
    completions = [f"<think>so</think><answer>{entry['answer']}</answer>", entry["answer"], *rubbish]
    rewards = reasoning_gym_reward(completions, [task] * len(completions), [as_json] * len(completions))
    assert rewards[0] == rewards[1] == score_answer(entry["answer"].strip(), json.loads(as_json))
    assert all(0.0 <= reward <= 1.0 for reward in rewards)


def test_the_last_answer_counts_also_in_messages():
    completions = [
        "<answer>5</answer><answer> 4 </answer>",
        messages("<answer>4</answer>"),
        " 4\n",
        "<answer>5</answer>",
    ]
    rewards = reasoning_gym_reward(completions, ["basic_arithmetic"] * 4, [ENTRY] * 4)
    assert rewards[:3] == [1.0] * 3 and rewards[3] < 0.1


def test_an_answer_that_the_scorer_cannot_read_scores_nothing():
    entry = json.dumps(reasoning_gym.create_dataset("prime_factorization", size=1, seed=0)[0])
    with pytest.raises(ValueError, match="invalid literal"):
        reasoning_gym.get_score_answer_fn("prime_factorization")("rubbish", json.loads(entry))
    assert reasoning_gym_reward(["rubbish"], ["prime_factorization"], [entry]) == [0.0]


def test_a_broken_entry_is_an_error_and_not_a_score():
    with pytest.raises(KeyError, match="metadata"):
        reasoning_gym_reward(["1/2"], ["fraction_simplification"], ['{"question": "2/4", "answer": "1/2"}'])


def test_an_unknown_task_is_named():
    with pytest.raises(ValueError, match="`task` has 'no_such_task'"):
        reasoning_gym_reward(["4"], ["no_such_task"], [ENTRY])


@settings(deadline=None)
@given(odd_texts)
def test_no_text_makes_reasoning_gym_raise(completion):
    [reward] = reasoning_gym_reward([completion], ["basic_arithmetic"], [ENTRY])
    assert 0.0 <= reward <= 1.0


# All of them


@pytest.mark.parametrize("conversational", [False, True])
def test_plain_grpo_trains_with_them(conversational, model_path, tmp_path):
    dataset = tiny.make_dataset(conversational=conversational).map(
        lambda row: {"solution": f"#### {row['target']}", "task": "basic_arithmetic", "entry": ENTRY}
    )
    trainer = GRPOTrainer(
        model=model_path,
        reward_funcs=[accuracy_reward, *REWARDS.values()],
        args=GRPOConfig(**tiny.default_arguments(tmp_path)),
        train_dataset=dataset,
    )
    trainer.train()
    log = trainer.state.log_history[0]
    assert all(f"rewards/{name}/mean" in log for name in ["accuracy_reward", *REWARDS])


def test_the_registry_holds_those_that_trl_does_not_have():
    assert all(function.__name__ == name for name, function in REWARDS.items())
    assert not set(REWARDS) & set(trl_rewards.__all__)


def test_importing_them_does_not_wait_for_torch():
    code = "import sys, trl_pods.rewards; assert not {'torch', 'math_verify', 'reasoning_gym'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("completion", "solution", "reward"),
    [
        ("7 " * 2000 + "so the answer is 12", "12", 1.0),  # of a long text only the end is read
        ("x" * 50_000, "12", 0.0),
        ("0.00001", "1e-05", 1.0),
        ("100000", "1e5", 1.0),
        ("90°", "90", 1.0),
        ("<think>it is 7", "7", 0.0),  # a thought that was cut is no answer
        ("<think>it is 7</think> So 8.", "8", 1.0),
    ],
)
def test_an_answer_is_read_from_the_end_and_outside_of_the_thought(completion, solution, reward):
    assert accuracy_reward([completion], solution=[solution]) == [reward]
