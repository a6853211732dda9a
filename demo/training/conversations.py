"""Combine exchanges into conversations: system messages, follow-up questions, manners."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from demo.training.exchanges import Exchange, first_sentence, vary
from demo.training.phrases import LISTS

Message = tuple[str, str]
Maker = Callable[[Random], Exchange]

START, END = "<|im_start|>", "<|im_end|>"

NO_MORE = "That is all I know about it. I am only a small model."
WELCOME = "You are welcome!"


@dataclass(slots=True)
class Conversation:
    """Messages so far, and what a follow-up question may refer to."""

    messages: list[Message] = field(default_factory=list)
    last: Exchange | None = None
    name: str = ""

    def add(self, question: str, answer: str) -> None:
        """Add a question and its answer."""
        self.messages += [("user", question), ("assistant", answer)]

    def render(self) -> str:
        """Return the text as the chat template writes it."""
        return "".join(f"{START}{role}\n{content}{END}\n" for role, content in self.messages)


class Conversations:
    """Draw conversations whose exchanges come from several makers, each with its weight."""

    def __init__(self, makers: Sequence[tuple[float, Maker]]) -> None:
        weights, self.makers = zip(*makers, strict=True)
        self.weights: tuple[float, ...] = weights

    def draw(self, random: Random) -> Conversation:
        """Draw a conversation: mostly short, but sometimes long enough to fill the context."""
        draw = random.random()
        turns = 1 if draw < 0.55 else random.randint(2, 4) if draw < 0.93 else random.randint(5, 14)
        conversation = Conversation()
        brief = self._open(conversation, random)
        for _ in range(turns):
            self._ask(conversation, random, brief)
        if turns > 1 and random.random() < 0.1:
            conversation.add(random.choice(LISTS["bye"]), "Goodbye! It was nice talking to you.")
        return conversation

    def _open(self, conversation: Conversation, random: Random) -> str:
        """Perhaps add a system message or an introduction. Return the required length of answers."""
        draw = random.random()
        manner = ""
        if draw < 0.28:
            conversation.messages.append(("system", random.choice(LISTS["plain system"])))
        elif draw < 0.34:
            conversation.messages.append(("system", random.choice(LISTS["brief system"])))
            manner = "brief"
        elif draw < 0.36:
            conversation.messages.append(("system", random.choice(LISTS["detailed system"])))
            manner = "detailed"
        elif draw < 0.37:
            name = random.choice(LISTS["names"])
            conversation.messages.append(("system", random.choice(LISTS["named system"]).format(name=name)))
            conversation.add(random.choice(LISTS["your name"]), f"My name is {name}. How can I help you?")
        if random.random() < 0.04:
            conversation.name = random.choice(LISTS["names"])
            conversation.add(
                random.choice(LISTS["meet"]).format(name=conversation.name),
                f"Nice to meet you, {conversation.name}! How can I help you?",
            )
        return manner

    def _ask(self, conversation: Conversation, random: Random, manner: str) -> None:
        """Add a turn: usually a new question, sometimes one about the last answer."""
        last = conversation.last
        draw = random.random()
        if conversation.name and draw < 0.25:
            conversation.add(random.choice(LISTS["who am i"]), f"Your name is {conversation.name}.")
        elif last is not None and draw < 0.55:
            self._follow_up(conversation, last, random)
        else:
            self._ask_new(conversation, random, manner)

    def _ask_new(self, conversation: Conversation, random: Random, manner: str) -> None:
        exchange = random.choices(self.makers, self.weights)[0](random)
        question = exchange.question if exchange.exact else vary(exchange.question, random)
        answer = exchange.answer
        if exchange.question[:4] in ("What", "Why ", "Expl", "How ") and random.random() < 0.03:
            question, answer = f"{exchange.question.rstrip('.')} Answer in one sentence.", exchange.short_answer
        elif manner == "brief":
            answer = exchange.short_answer if len(answer) < 280 and "\n" not in answer else answer
        elif manner == "detailed" and exchange.more:
            answer = f"{exchange.answer} {exchange.more}"
        conversation.add(question, answer)
        conversation.last = exchange

    def _follow_up(self, conversation: Conversation, last: Exchange, random: Random) -> None:
        """Add a question about the last question or answer."""
        question, answer = conversation.messages[-2][1], conversation.messages[-1][1]
        draw = random.random()
        if last.ask_next is not None and draw < 0.55:
            following = last.ask_next(random)
            conversation.add(following.question, following.answer)
        elif draw < 0.60 and last.more and last.more not in answer:
            conversation.add(random.choice(LISTS["more"]), last.more)
        elif draw < 0.64:
            conversation.add(random.choice(LISTS["more"]), NO_MORE)
            conversation.last = None
        elif draw < 0.80:
            conversation.add(random.choice(LISTS["thanks"]), WELCOME)
            conversation.last = None
        elif draw < 0.87 and len(answer) < 300:
            conversation.add(random.choice(LISTS["again"]), answer)
        elif draw < 0.93 and len(answer) < 600:
            conversation.add(random.choice(LISTS["shorter"]), first_sentence(answer))
        elif len(question) < 200:
            conversation.add(random.choice(LISTS["asked"]), f'You asked: "{question}"')
            conversation.last = None
