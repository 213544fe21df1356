"""Rows in the columns in which datasets are published, made here, for tests of adapters and recipes."""


def gsm8k_rows(number: int) -> list[dict[str, str]]:
    """As in openai/gsm8k: calculator notes inside the worked answer, commas in thousands."""
    rows = []
    for i in range(number):
        boxes, apples = i + 2, 500 + 10 * i
        total = boxes * apples
        rows.append(
            {
                "question": f"A farmer fills {boxes} boxes with {apples} apples each. How many apples are that?",
                "answer": f"He needs {boxes} * {apples} = <<{boxes}*{apples}={total}>>{total} apples.\n#### {total:,}",
            }
        )
    return rows


def gsm8k_gold(number: int) -> list[str]:
    """What is right in `gsm8k_rows`."""
    return [str((i + 2) * (500 + 10 * i)) for i in range(number)]


def math_rows(number: int) -> list[dict[str, str]]:
    """As in MATH (hendrycks): a worked solution with more than one box, the last with nested braces."""
    return [
        {
            "problem": f"Let $x = \\sqrt{{{i + 2}}}$. What is $\\frac{{1}}{{1/x}}$ divided by $x^2$?",
            "level": f"Level {i % 5 + 1}",
            "type": "Algebra",
            "solution": f"Note that $x^2 = \\boxed{{{i + 2}}}$, so the quotient is ${box(math_gold(number)[i])}$.",
        }
        for i in range(number)
    ]


def math_gold(number: int) -> list[str]:
    """What is right in `math_rows`."""
    return [f"\\frac{{1}}{{\\sqrt{{{i + 2}}}}}" for i in range(number)]


def math_500_rows(number: int) -> list[dict]:
    """As in HuggingFaceH4/MATH-500: as MATH, and the answer by itself."""
    return [
        {
            "problem": row["problem"],
            "solution": row["solution"],
            "answer": gold,
            "subject": row["type"],
            "level": i % 5 + 1,
            "unique_id": f"test/algebra/{i}.json",
        }
        for i, (row, gold) in enumerate(zip(math_rows(number), math_gold(number)))
    ]


def question_answer_rows(number: int) -> list[dict[str, str]]:
    """A question and its short answer."""
    return [{"question": f"How much is {i} + {i + 1}?", "answer": str(2 * i + 1)} for i in range(number)]


def box(text: str) -> str:
    return f"\\boxed{{{text}}}"
