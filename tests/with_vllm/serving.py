"""
A stand-in for the HTTP server that `vllm serve` starts, as TRL's client speaks to it.

Its completions and log-probs depend on the prompt and on the completion's place among those of that prompt, so that a
row shows where it comes from. Weights cannot be sent to it: TRL sends them by NCCL, which needs a GPU.
"""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import tiny
from recording import score
from trl.generation.vllm_client import VLLMClient

LETTERS = range(3, 3 + 26)  # the tokens of a to z in the tiny tokenizer

ANSWERS = {
    "/health": {},
    "/v1/models": {"data": [{"id": "tiny"}]},
    "/server_info": {"vllm_config": {"model_config": {"logprobs_mode": "processed_logprobs"}}},
}


def completion_of(prompt_ids: list[int], place: int) -> list[int]:
    """2 to 5 letters, which end."""
    letters = [LETTERS[int(26 * score(prompt_ids, place, i))] for i in range(2 + place % 4)]
    return [*letters, tiny.make_tokenizer().eos_token_id]


def log_probs_of(completion_ids: list[int]) -> list[float]:
    return [-score(completion_ids, i) for i in range(len(completion_ids))]


def choice(prompt_ids: list[int], place: int) -> dict:
    ids = completion_of(prompt_ids, place)
    tokens = [f"token_id:{token}" for token in ids]
    log_probs = log_probs_of(ids)
    top = [{token: log_prob} for token, log_prob in zip(tokens, log_probs, strict=True)]
    return {
        "prompt_token_ids": prompt_ids,
        "token_ids": ids,
        "logprobs": {"tokens": tokens, "token_logprobs": log_probs, "top_logprobs": top},
    }


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self._answer(ANSWERS[self.path.partition("?")[0]])

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        if self.path != "/v1/completions":
            return self._answer({"success": True})
        self.server.asked.append(body)
        return self._answer({"choices": [choice(ids, place) for ids in body["prompt"] for place in range(body["n"])]})

    def _answer(self, content: dict) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@contextmanager
def serve():
    """Start the server; its `url` is where, and `asked` what was posted to `/v1/completions`."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.asked = []
        server.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def keep_weights_here(patch) -> list[dict]:
    """Replace, in TRL's client, the two calls that need NCCL; returns the weights that each update would send."""
    updates = []

    def update_named_params(self, metadata, named_params):
        updates.append({name: tensor.detach().clone() for name, tensor in named_params})
        assert [(name, list(tensor.shape)) for name, tensor in updates[-1].items()] == [
            (name, shape) for name, _, shape in metadata
        ]

    patch.setattr(VLLMClient, "init_communicator", lambda self, device: None)
    patch.setattr(VLLMClient, "update_named_params", update_named_params)
    return updates


def server_arguments(server_url: str) -> dict:
    # The log-probs are made up, so they must not weigh the update.
    return {
        "vllm_mode": "server",
        "vllm_server_base_url": server_url,
        "vllm_importance_sampling_correction": False,
    }
