"""Make questions and answers about words from WordNet."""

import re
from collections.abc import Callable
from random import Random

from demo.training.exchanges import Exchange, capitalised, with_indefinite_article
from demo.training.lexicon import CATEGORIES, HYPERNYM, HYPONYM, PART, Lexicon, Word
from demo.training.phrases import LISTS

SPOKEN_PART = {"n": "noun", "v": "verb", "a": "adjective", "r": "adverb"}


def defined(word: Word) -> str:
    """Return the meaning of a word as one sentence."""
    meaning = word.senses[0].definition
    if word.part == "v":
        return f"To {word.lemma} means to {meaning}."
    if word.part == "n" and re.match(r"(an?|one|any|some(one|thing)|anything) ", meaning):
        return f"{capitalised(with_indefinite_article(word.lemma))} is {meaning}."
    if word.part == "n" and meaning.startswith("the "):
        return f"{capitalised(word.lemma)} is {meaning}."
    return f'The word "{word.lemma}" means {meaning}.'


def named(word: Word) -> str:
    """Return how a question names the word."""
    countable = word.part == "n" and defined(word).startswith(("A ", "An "))
    return with_indefinite_article(word.lemma) if countable else word.lemma


def _asked(ways: list[str], word: Word, random: Random) -> str:
    """Return one of the ways to ask about a word."""
    return random.choice(ways).format(word=word.lemma, name=named(word), part=SPOKEN_PART[word.part])


def define(lexicon: Lexicon, word: Word, random: Random) -> Exchange | None:
    """Ask what it means."""
    if word.lemma in lexicon.taken:
        return None
    ways = LISTS["ask meaning"]
    if word.part == "n":
        ways = ways + LISTS["ask meaning of thing"]
    if word.part == "v":
        ways = ways + LISTS["ask meaning of doing"]
    more = ""
    if len(word.senses) > 1:
        more = f"It can also mean {word.senses[1].definition}."
    example = lexicon.example_of(word, random)
    answer = defined(word)
    if example and random.random() < 0.3:
        answer += f" For example: {example}"
    return Exchange(_asked(ways, word, random), answer, more)


def in_a_sentence(lexicon: Lexicon, word: Word, random: Random) -> Exchange | None:
    """Ask to use it in a sentence."""
    example = lexicon.example_of(word, random)
    if not example:
        return None
    return Exchange(_asked(LISTS["ask sentence"], word, random), example)


def kind_of(lexicon: Lexicon, word: Word, random: Random) -> Exchange | None:
    """Ask what kind of thing it is."""
    above = lexicon.related(word, HYPERNYM)
    if word.part != "n" or not above:
        return None
    name = named(word)
    return Exchange(_asked(LISTS["ask kind"], word, random), f"{capitalised(name)} is a kind of {above[0]}.")


def kinds_of(lexicon: Lexicon, word: Word, random: Random) -> Exchange | None:
    """Ask for some kinds of it."""
    below = lexicon.related(word, HYPONYM)
    if word.part != "n" or len(below) < 2:
        return None
    below.sort(key=lambda name: -lexicon.common[name, "n"].count)
    shown = below[:4]
    listed = ", ".join(shown[:-1]) + " and " + shown[-1]
    return Exchange(_asked(LISTS["ask kinds"], word, random), f"Some kinds of {word.lemma} are {listed}.")


def parts_of(lexicon: Lexicon, word: Word, random: Random) -> Exchange | None:
    """Ask for its parts."""
    parts = lexicon.related(word, PART)
    if word.part != "n" or not parts:
        return None
    name = named(word)
    shown = [with_indefinite_article(part) for part in parts[:4]]
    listed = ", ".join(shown[:-1]) + " and " + shown[-1] if len(shown) > 1 else shown[0]
    return Exchange(_asked(LISTS["ask parts"], word, random), f"{capitalised(name)} has {listed}.")


def opposite_of(lexicon: Lexicon, word: Word, random: Random) -> Exchange | None:
    """Ask for the opposite."""
    if word.lemma in lexicon.taken:
        return None
    for sense in word.senses[:1]:
        if word.lemma in sense.antonyms:
            key, position = sense.antonyms[word.lemma]
            other = lexicon.synsets[key].words[position]
            return Exchange(
                _asked(LISTS["ask opposite"], word, random), f"The opposite of {word.lemma} is {other}."
            )
    return None


def synonym_of(lexicon: Lexicon, word: Word, random: Random) -> Exchange | None:
    """Ask for another word for it."""
    others = [name for name in word.senses[0].words if name != word.lemma and (name, word.part) in lexicon.common]
    if not others:
        return None
    others.sort(key=lambda name: -lexicon.common[name, word.part].count)
    return Exchange(_asked(LISTS["ask synonym"], word, random), f"Another word for {word.lemma} is {others[0]}.")


def belongs_to(lexicon: Lexicon, word: Word, random: Random) -> Exchange | None:
    """Ask whether it is, for example, an animal."""
    if word.part != "n":
        return None
    true = lexicon.categories(word) - {word.lemma}
    above = lexicon.related(word, HYPERNYM)
    if not true or not above:
        return None
    name = named(word)
    if random.random() < 0.6:
        category = random.choice(sorted(true))
        return Exchange(
            f"Is {name} {_mass_or_article(category)}?", f"Yes, {name} is {_mass_or_article(category)}."
        )
    category = random.choice(sorted(CATEGORIES - true - {word.lemma}))
    return Exchange(f"Is {name} {_mass_or_article(category)}?", f"No, {name} is a kind of {above[0]}.")


def _mass_or_article(category: str) -> str:
    return category if category in ("food", "clothing", "furniture") else with_indefinite_article(category)


MAKERS: tuple[Callable[[Lexicon, Word, Random], Exchange | None], ...] = (
    define,
    in_a_sentence,
    kind_of,
    kinds_of,
    parts_of,
    opposite_of,
    synonym_of,
    belongs_to,
)
MAKER_WEIGHTS = (6.0, 3.0, 1.2, 1.0, 0.6, 1.5, 1.2, 1.0)


def ask(lexicon: Lexicon, random: Random) -> Exchange:
    """Draw a question about some word."""
    for _ in range(100):
        word = lexicon.draw_word(random)
        maker = random.choices(MAKERS, MAKER_WEIGHTS)[0]
        exchange = maker(lexicon, word, random)
        if exchange is not None:
            return exchange
    raise RuntimeError("no maker fits a hundred words in a row")


def article(lexicon: Lexicon, random: Random) -> str:
    """Return a few sentences about a word."""
    word = lexicon.draw_word(random)
    told = [defined(word)]
    for maker in random.sample((kind_of, kinds_of, parts_of, opposite_of, in_a_sentence), 4):
        exchange = maker(lexicon, word, random)
        if exchange is not None and exchange.answer not in told:
            told.append(exchange.answer)
    return " ".join(told)
