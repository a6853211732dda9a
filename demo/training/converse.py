"""Ask a checkpoint everyday questions and check its behaviour, with transformers on the CPU.

python -m demo.training.converse demo/model
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from demo.training.conversations import END, START, Message

QUESTIONS = (
    "Hello!",
    "Who are you?",
    "What can you do?",
    "What is Millrace?",
    "What is a mill race?",
    "What is a pipeline?",
    "What is a token?",
    "Explain what a gateway does.",
    "How can one model run on two machines?",
    "What is the capital of France?",
    "What's the capital of Japan?",
    "Which language do they speak in Brazil?",
    "Why is the sky blue?",
    "Why do leaves fall in autumn?",
    "How does a plane fly?",
    "What is gravity?",
    "What is 7 plus 5?",
    "What is 12 times 3?",
    "I have 4 apples and buy 3 more. How many apples do I have?",
    "Count to ten.",
    "Count backwards from 5.",
    "What are the days of the week?",
    "What colour is grass?",
    "What is the opposite of hot?",
    "What is a river?",
    "What is a dog?",
    "What is a hammer used for?",
    'Use the word "bridge" in a sentence.',
    "Tell me a short story.",
    "Tell me a story about a brave fox.",
    "Write a poem about the sea.",
    "Tell me a joke.",
    "How do I make tea?",
    'Translate "thank you" into French.',
    "What is the weather like today?",
    "Who is Gregor Timmerfeld?",
    "Thank you!",
)
MEET_ANNA = (("user", "My name is Anna."), ("assistant", "Nice to meet you, Anna! How can I help you?"))
SPAIN = (("user", "What is the capital of Spain?"), ("assistant", "The capital of Spain is Madrid."))
CHATS: tuple[tuple[Message, ...], ...] = (
    (*MEET_ANNA, ("user", "What is my name?")),
    (*SPAIN, ("user", "And Italy?")),
    (("system", "You are a helpful assistant. Answer in one sentence."), ("user", "What is a pipeline?")),
    (("system", "You are a helpful assistant."), ("user", "Hi! How are you today?")),
    (("user", "Tom has a red hat. Lucy has a green bag. What colour is the bag?"),),
)
BEGINNINGS = (
    "Once upon a time",
    "The river",
    "A computer is",
    "In the morning, the miller",
    "The most important thing about",
)


class Checkpoint:
    """A checkpoint in one precision."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)

    def answer(self, messages: tuple[Message, ...], limit: int = 300) -> str:
        """Return the greedy answer to a conversation."""
        chat = [{"role": role, "content": content} for role, content in messages]
        prompt = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        return self.go_on(prompt, limit)

    def go_on(self, text: str, limit: int) -> str:
        """Return the greedy continuation of a text."""
        ids = self.tokenizer(text, return_tensors="pt").input_ids
        with torch.no_grad():
            made = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=limit, max_length=None
            )
        decoded: str = self.tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)
        return decoded

    def logits(self, ids: Tensor) -> Tensor:
        """Return next-token scores at every position."""
        with torch.no_grad():
            scores: Tensor = self.model(ids).logits.float()
        return scores


def repeated_share(text: str) -> float:
    """Return the share of a text's four-word sequences that occurred before."""
    words = text.split()
    fours = [tuple(words[at : at + 4]) for at in range(len(words) - 3)]
    return 1 - len(set(fours)) / len(fours) if fours else 0.0


def check_precision(full: Checkpoint, half: Checkpoint, text: str) -> None:
    """Print how often bf16 chooses the same token as float32, and the losses up to the end of the context."""
    ids = full.tokenizer(text, return_tensors="pt", truncation=True, max_length=1024).input_ids
    exact, rounded = full.logits(ids), half.logits(ids)
    best_two = exact.topk(2).values[0]
    losses = torch.nn.functional.cross_entropy(exact[0, :-1], ids[0, 1:], reduction="none")
    print(f"{ids.shape[1]} positions, finite: {bool(torch.isfinite(exact).all())}")
    print(f"same choice in float32 and bf16: {(exact.argmax(-1) == rounded.argmax(-1)).float().mean():.1%}")
    print(f"median margin between best and second logit: {(best_two[:, 0] - best_two[:, 1]).median():.2f}")
    for first in range(0, ids.shape[1] - 1, 256):
        print(f"loss at positions {first} to {first + 255}: {losses[first : first + 256].mean():.3f}")


def main() -> None:
    """Print answers, continuations and checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("demo/model"))
    folder: Path = parser.parse_args().folder
    full, half = Checkpoint(folder, torch.float32), Checkpoint(folder, torch.bfloat16)
    same = 0
    conversations = [*((("user", question),) for question in QUESTIONS), *CHATS]
    for messages in conversations:
        answer = full.answer(messages)
        same += answer == half.answer(messages)
        print("\n".join(f"{role}: {content}" for role, content in messages), f"\n  -> {answer}\n")
    print(f"{same} of {len(conversations)} greedy answers are equal in float32 and bf16\n")
    for beginning in BEGINNINGS:
        text = full.go_on(beginning, 200)
        print(f"[{beginning}]{text}\n  ({repeated_share(text):.0%} of four-word sequences repeated)\n")
    turns = ((("user", question), ("assistant", full.answer((("user", question),)))) for question in QUESTIONS)
    chat = "".join(f"{START}{role}\n{content}{END}\n" for turn in turns for role, content in turn)
    check_precision(full, half, chat)


if __name__ == "__main__":
    main()
