"""Adapters on data in the published formats, all tasks of reasoning-gym, and the length filter."""

import json
import logging
import random
import subprocess
import sys

import numpy as np
import pytest
import reasoning_gym
import samples
import tiny
from datasets import Dataset, DatasetDict, IterableDataset, load_dataset
from reasoning_gym.factory import DATASETS

from trl_pods.data import adapt, drop_long_prompts, list_adapters, load_task
from trl_pods.data.reasoning_gym import HASH_DEPENDENT

PUBLISHED = {
    "gsm8k": (samples.gsm8k_rows, samples.gsm8k_gold, "question"),
    "math": (samples.math_rows, samples.math_gold, "problem"),
    "math_500": (samples.math_500_rows, samples.math_gold, "problem"),
    "question_answer": (samples.question_answer_rows, lambda n: [str(2 * i + 1) for i in range(n)], "question"),
}
REFUSED = ("arc_agi", "rearc")
SLOW = (
    "futoshiki",
    "intermediate_integration",
    "knight_swap",
    "puzzle24",
    "quantum_lock",
    "sokoban",
    "zebra_puzzles",
)
TASKS = sorted(set(DATASETS) - {"composite"})


def published(rows: list[dict], folder, file_format: str, streaming: bool = False):
    """The rows in a file of a published format, loaded from it as a recipe loads a dataset."""
    path = folder / f"train.{file_format}"
    if file_format == "json":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        Dataset.from_list(rows).to_parquet(path)
    return load_dataset(file_format, data_files={"train": str(path)}, cache_dir=str(folder), streaming=streaming)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("file_format", ["json", "parquet"])
@pytest.mark.parametrize("adapter", PUBLISHED)
def test_published_columns_become_prompts_and_right_answers(adapter, file_format, streaming, tmp_path):
    make_rows, gold, question = PUBLISHED[adapter]
    rows = make_rows(6)
    data = adapt(
        published(rows, tmp_path, file_format, streaming), adapter, conversational=True, system_prompt="Solve."
    )
    adapted = list(data["train"])
    assert [row["prompt"] for row in adapted] == [
        [{"role": "system", "content": "Solve."}, {"role": "user", "content": row[question]}] for row in rows
    ]
    assert [row["solution"] for row in adapted] == gold(6)
    for row, before in zip(adapted, rows):
        assert {**before, "prompt": row["prompt"], "solution": row["solution"]} == row  # the rest is kept


def test_every_adapter_for_published_columns_is_tested():
    assert {*PUBLISHED, "reasoning_gym"} == list_adapters().keys()
    assert all(summary.endswith(".") for summary in list_adapters().values())


def test_prompts_without_a_chat_template_are_text():
    data = Dataset.from_list(samples.question_answer_rows(1))
    assert adapt(data, "question_answer", conversational=False)["prompt"] == ["How much is 0 + 1?\n"]
    with_system = adapt(data, "question_answer", conversational=False, system_prompt="Solve.")
    assert with_system["prompt"] == ["Solve.\n\nHow much is 0 + 1?\n"]
    without = adapt(data, "question_answer", conversational=True)["prompt"][0]
    assert without == [{"role": "user", "content": "How much is 0 + 1?"}]


def test_column_names_can_be_given():
    data = Dataset.from_list([{"prompt": "How much is 1 + 1?", "result": 2}])
    adapted = adapt(data, "question_answer", conversational=False, question_column="prompt", answer_column="result")
    assert adapted[0] == {"prompt": "How much is 1 + 1?\n", "result": 2, "solution": "2"}


@pytest.mark.parametrize(
    ("adapter", "row"),
    [
        ("gsm8k", {"question": "q", "answer": "It is 72."}),
        ("math", {"problem": "q", "solution": r"It is \boxed{72"}),
        ("question_answer", {"question": "q", "answer": None}),
        ("question_answer", {"question": "q", "answer": " "}),
    ],
)
def test_rows_without_an_answer_are_kept_and_counted(adapter, row, caplog):
    good = PUBLISHED[adapter][0](2)
    data = Dataset.from_list([row | dict.fromkeys(good[0].keys() - row, "x"), *good])
    adapted = adapt(DatasetDict(train=data), adapter, conversational=True)["train"]
    assert [solution is None for solution in adapted["solution"]] == [True, False, False]
    assert f"in 1 of 3 rows of the split 'train' by the adapter {adapter!r}" in caplog.text


def test_nothing_is_no_answer_and_a_zero_is_text():
    rows = Dataset.from_list([{"question": i, "answer": answer} for i, answer in enumerate(["", "x"])])
    adapted = adapt(rows, "question_answer", conversational=False)
    assert adapted["solution"][:] == [None, "x"] and adapted["prompt"][:] == ["0\n", "1\n"]


def test_a_first_batch_without_answers_does_not_fix_the_type():
    rows = [{"question": "q", "answer": None}] * 1000 + samples.question_answer_rows(1)
    assert adapt(Dataset.from_list(rows), "question_answer", conversational=False)["solution"][-1] == "1"


def test_a_streamed_generator_without_known_columns_is_adapted():
    data = IterableDataset.from_generator(lambda: iter(samples.gsm8k_rows(3)))
    adapted = adapt(data, "gsm8k", conversational=False)
    assert [row["solution"] for row in adapted] == samples.gsm8k_gold(3)
    with pytest.raises(ValueError, match=r"columns are \['question', 'answer'\], but the adapter 'math' needs"):
        adapt(data, "math", conversational=False)


@pytest.mark.parametrize(
    ("columns", "arguments", "message"),
    [
        (["question", "answer"], {"adapter": "gsm8"}, r"`dataset_adapter` is 'gsm8'.*Did you mean 'gsm8k'\?"),
        (["question", "answer"], {"adapter": "xyz"}, r"the adapters are \['gsm8k', 'math'.*Choose one of them\."),
        (
            ["question", "answer"],
            {"adapter": "math"},
            r"\['problem', 'solution'\] are missing.*adapters fit: \['gsm8k',",
        ),
        (
            ["q", "a"],
            {"adapter": "gsm8k"},
            r"columns of the split 'train' are \['q', 'a'\].*Set `question_column` and `answer_column`\.",
        ),
        (["prompt", "answer"], {"adapter": "gsm8k"}, r"TRL's format already\. Remove `dataset_adapter`"),
        (["question", "answer"], {"adapter": "reasoning_gym"}, r"needs \['question', 'task', 'entry'\]"),
        (["question"], {"adapter": "reasoning_gym", "answer_column": "x"}, r"`answer_column` does not go with"),
    ],
)
def test_what_does_not_fit_is_explained(columns, arguments, message):
    data = DatasetDict(train=Dataset.from_dict({column: ["1"] for column in columns}))
    with pytest.raises(ValueError, match=message):
        adapt(data, conversational=True, **arguments)


@pytest.mark.parametrize("value", [["1", "2"], {"x": "1"}])
def test_answers_that_are_no_text_are_refused(value):
    data = Dataset.from_list([{"question": "q", "answer": value}])
    with pytest.raises(ValueError, match=r"The column 'answer' holds .*, which is not text"):
        adapt(data, "question_answer", conversational=True)


@pytest.mark.filterwarnings("ignore:.*unclosed file:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("task", TASKS)
def test_every_task_scores_its_own_answer_from_the_text_of_its_entry(task, monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "0")  # said, so that it is not refused; problems may differ between processes
    sizes = {"size": 2, "test_size": 1} if task in SLOW else {"size": 12, "test_size": 4}
    if task in REFUSED:
        with pytest.raises(ValueError, match=f"The task '{task}' cannot be used: once it is written as JSON"):
            load_task(task, sizes)
        return
    data = load_task(task, sizes)
    assert {split: len(rows) for split, rows in data.items()} == {"train": sizes["size"], "test": sizes["test_size"]}
    score = reasoning_gym.get_score_answer_fn(task)
    for row in [*data["train"], *data["test"]]:
        entry = json.loads(row["entry"])
        assert (row["task"], entry["question"]) == (task, row["question"])
        if (right := right_answer(task, entry)) is not None:
            assert score(right, entry) >= 1


def right_answer(task: str, entry: dict) -> str | None:
    """A right answer, also for tasks that state none but give an example beside it."""
    if task == "graph_color":
        return json.dumps(entry["metadata"]["possible_answer"])
    examples = {"propositional_logic": "example_answer", "rubiks_cube": "example_correct_answer"}
    return entry["metadata"][examples[task]] if task in examples else entry["answer"]


@pytest.mark.long
def test_tasks_that_differ_between_processes_are_known():
    """Python's hashes of text differ between processes; a task that depends on them must not be split by each alone."""
    program = (
        "import sys\n"
        "from trl_pods.data.reasoning_gym import different_entries\n"
        "for name in sys.argv[1:]:\n"
        "    print(name, ascii(different_entries(name, {}, 0, 4)), file=sys.stderr)\n"
    )
    tasks = [task for task in TASKS if task not in SLOW]
    printed = [
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", program, *tasks],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=900,
        ).stderr.splitlines()
        for seed in ("1", "2")
    ]
    assert len(printed[0]) == len(tasks)
    differing = {line.split()[0] for line, other in zip(*printed) if line != other}
    assert differing <= set(HASH_DEPENDENT) and "word_ladder" in differing


def test_generating_a_task_leaves_the_global_random_sources_alone():
    before = random.getstate(), np.random.get_state()[1].tolist()
    for task in ("list_functions", "pool_matrix"):
        load_task(task, {"size": 4, "test_size": 2})
    assert before == (random.getstate(), np.random.get_state()[1].tolist())


def test_held_out_questions_are_not_trained_on_and_the_split_repeats():
    settings = {"min_terms": 2, "max_terms": 2, "max_digits": 2, "size": 900, "test_size": 100, "seed": 3}
    data, again = load_task("chain_sum", settings), load_task("chain_sum", settings)
    questions = {split: data[split]["question"] for split in data}
    assert {split: len(set(questions[split])) for split in questions} == {"train": 900, "test": 100}
    assert not set(questions["train"]) & set(questions["test"])
    assert questions == {split: again[split]["question"] for split in again}
    assert questions["test"] != load_task("chain_sum", settings | {"seed": 4})["test"]["question"][:]


def test_a_task_with_few_questions_gives_what_it_has(caplog):
    settings = {"max_terms": 2, "max_digits": 1, "size": 5000, "test_size": 50}
    data = load_task("chain_sum", settings)
    assert len(data["train"]) == 150 and len(data["test"]) == 50  # 10 x 10 x plus or minus
    assert "50 are held out, which leaves 150 of `size` 5,000" in caplog.text
    with pytest.raises(ValueError, match=r"200 different questions.*`test_size` is 256\. Lower it"):
        load_task("chain_sum", settings | {"test_size": 256})


def test_a_task_becomes_prompts_and_what_its_scorer_needs():
    data = adapt(load_task("leg_counting", {"size": 4, "test_size": 2}), "reasoning_gym", conversational=True)
    row = data["train"][0]
    assert row.keys() == {"prompt", "question", "task", "entry"}
    assert row["prompt"] == [{"role": "user", "content": row["question"]}]


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("chain_smu", None, r"`dataset_name` is 'chain_smu'.*Did you mean one of \['chain_sum'"),
        ("qqqqqqq", None, r"Choose one of \['ab', 'acre'"),
        ("composite", None, r"no task of reasoning-gym that can be had"),
        ("chain_sum", {"max_term": 3}, r"no settings \['max_term'\]\. In `task_kwargs`, it takes \['min_terms'"),
        ("chain_sum", {"max_terms": 1}, r"do not suit the task 'chain_sum': max_terms must be >= min_terms"),
        ("chain_sum", {"size": 0}, r"`size` in `task_kwargs` is 0, but it must be a whole number from 1"),
        ("chain_sum", {"seed": "x"}, r"`seed` in `task_kwargs` is 'x'"),
        ("puzzle24", {"max_value": 6, "min_value": 0}, r"do not suit|cannot be used"),
    ],
)
def test_tasks_that_cannot_be_made_are_explained(task, settings, message):
    with pytest.raises(ValueError, match=message):
        load_task(task, settings)


def test_a_task_that_would_differ_between_processes_is_refused(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(ValueError, match=r"'word_ladder' comes out otherwise in each process.*`PYTHONHASHSEED=0`"):
        load_task("word_ladder")


@pytest.mark.parametrize("conversational", [False, True])
def test_long_prompts_are_left_out_as_trl_counts_them(conversational, caplog):
    caplog.set_level(logging.INFO, logger="trl_pods")
    rng = random.Random(0)
    rows = [{"question": "a" * rng.randrange(1, 40), "answer": "1"} for _ in range(1200)]
    data = adapt(Dataset.from_list(rows), "question_answer", conversational=conversational)
    template = len("<user></s><assistant>") - len("</s>") + 1 if conversational else len("\n")
    short = [row["question"] for row in rows if len(row["question"]) + template <= 30]
    kept = drop_long_prompts(DatasetDict(train=data, test=data), tiny.make_tokenizer(), 30)
    assert kept["train"]["question"] == kept["test"]["question"] == short
    left_out = f"Left out {1200 - len(short):,} of 1,200 prompts longer than `max_prompt_length` (30 tokens)."
    assert [record.getMessage() for record in caplog.records] == [f"train: {left_out}", f"test: {left_out}"]


def test_streamed_prompts_are_filtered_as_they_are_read(caplog):
    caplog.set_level(logging.INFO, logger="trl_pods")
    data = Dataset.from_dict({"prompt": ["a" * length for length in range(1, 21)]}).to_iterable_dataset()
    kept = drop_long_prompts(data, tiny.make_tokenizer(), 5)
    assert [len(row["prompt"]) for row in kept] == [1, 2, 3, 4, 5]
    assert "Leaving out prompts longer than `max_prompt_length` (5 tokens), uncounted" in caplog.text


def test_it_is_an_error_if_all_prompts_are_too_long():
    data = Dataset.from_dict({"prompt": ["aaa", "aaaa"]})
    with pytest.raises(ValueError, match=r"All 2 prompts are longer than `max_prompt_length` \(2 tokens\)\. Raise it"):
        drop_long_prompts(data, tiny.make_tokenizer(), 2)


def test_numbers_written_by_hand_or_as_floats_are_solutions():
    rows = Dataset.from_list([{"question": "q", "answer": value} for value in (72.0, 1e-5, float("nan"))])
    assert adapt(rows, "question_answer", conversational=False)["solution"][:] == ["72", "0.00001", None]
    boxes = [{"problem": "p", "solution": text} for text in (r"$\boxed 5$.", r"\boxed{6}", r"\boxed\frac12")]
    adapted = adapt(Dataset.from_list(boxes), "math", conversational=False)
    assert adapted["solution"][:] == ["5", "6", r"\frac12"]


def test_an_empty_split_stays_empty():
    rows = Dataset.from_list([{"question": "q", "answer": "1"}])
    data = adapt(DatasetDict({"train": rows, "test": rows.select([])}), "question_answer", conversational=True)
    assert len(data["test"]) == 0
    assert data["test"].column_names == data["train"].column_names


@pytest.mark.parametrize(
    ("task", "task_kwargs"),
    [
        ("spell_backward", {"min_word_len": 300, "max_word_len": 400}),
        ("chain_sum", {5: 5, "foo": 1}),
    ],
)
def test_settings_that_fail_while_problems_are_made_are_refused(task, task_kwargs):
    with pytest.raises(ValueError, match=f"task.*{task}"):
        load_task(task, task_kwargs)
