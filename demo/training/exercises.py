"""Make endless exchanges by rules: sums, counting, spelling, repeating, names and polite refusals."""

from collections.abc import Callable
from random import Random

from demo.training.exchanges import Exchange, capitalised, with_indefinite_article
from demo.training.phrases import LISTS

ONES, TENS = LISTS["ones"], LISTS["tens"]
DONT_KNOW = "I am a small model and do not know that."


def in_words(number: int) -> str:
    """Write a number from 0 to 999 in words, such as `forty-two`."""
    if number < 20:
        return ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return TENS[tens] + (f"-{ONES[ones]}" if ones else "")
    hundreds, rest = divmod(number, 100)
    return f"{ONES[hundreds]} hundred" + (f" and {in_words(rest)}" if rest else "")


def sums(random: Random) -> Exchange:
    """Ask for plus, minus, times or divided by, mostly with small numbers."""
    top = random.choice((10, 10, 12, 20, 20, 50, 100))
    left, right = random.randint(0, top), random.randint(0, top)
    if random.random() < 0.06:
        left, right = 100 * random.randint(1, 9), 100 * random.randint(1, 9)
    kind = random.choice("++-*")
    if kind == "-" and left < right:
        left, right = right, left
    if kind == "*":
        left, right = random.randint(0, 12), random.randint(0, 12)
        if right and random.random() < 0.3:
            return _sum_asked(left * right, right, "divided by", "/", left, random)
    value = {"+": left + right, "-": left - right, "*": left * right}[kind]
    word = {"+": "plus", "-": "minus", "*": "times"}[kind]
    return _sum_asked(left, right, word, kind, value, random)


def _sum_asked(left: int, right: int, word: str, sign: str, value: int, random: Random) -> Exchange:
    spoken, written = f"{left} {word} {right}", f"{left} {sign} {right}"
    if left <= 20 and right <= 20 and random.random() < 0.15:
        spoken = f"{in_words(left)} {word} {in_words(right)}"
    ways = (
        f"What is {spoken}?",
        f"What is {written}?",
        f"What is {left}{sign}{right}?",
        f"What's {spoken}?",
        f"{written}",
        f"{left}{sign}{right}",
        f"{written} =",
        f"{written} = ?",
        f"How much is {spoken}?",
        f"How much is {written}?",
        f"Calculate {written}.",
        f"Compute {written}.",
        f"Please add {left} and {right}." if sign == "+" else f"What does {spoken} make?",
        f"Add {left} and {right}." if sign == "+" else f"Can you tell me what {spoken} is?",
        f"What is the sum of {left} and {right}?" if sign == "+" else f"What is {spoken}?",
    )
    return Exchange(random.choice(ways), f"{left} {word} {right} is {value}.")


def hard_sums(random: Random) -> Exchange:
    """Ask for sums that the model should not try."""
    left, right = random.randint(200, 99999), random.randint(200, 99999)
    sign = random.choice(("*", "times", "divided by", "+", "-"))
    ways = (f"What is {left} {sign} {right}?", f"{left} {sign} {right}", f"Calculate {left} {sign} {right}.")
    return Exchange(
        random.choice(ways), "That sum is too hard for me. I am a small model, so please use a calculator."
    )


def stories_with_sums(random: Random) -> Exchange:
    """Ask for a sum in a story: `Tom has 3 apples and gets 2 more.`"""
    have, change = random.randint(1, 12), random.randint(1, 10)
    name, thing = random.choice(LISTS["names"]), random.choice(LISTS["things"])
    who = random.choice(("I", name))
    verb, ask = ("have", "do I have") if who == "I" else ("has", f"does {who} have")
    if random.random() < 0.5 or change > have:
        change_text = random.choice(("get {n} more", "buy {n} more", "find {n} more"))
        total = have + change
    else:
        change_text = random.choice(("give {n} away", "lose {n}", "sell {n}"))
        total = have - change
    if who != "I":
        change_text = change_text.replace(" ", "s ", 1)
    noun = thing if have > 1 else thing.removesuffix("s")
    question = f"{who} {verb} {have} {noun} and {change_text.format(n=change)}. How many {thing} {ask} now?"
    owner = "You have" if who == "I" else f"{who} has"
    if total == 0:
        return Exchange(question, f"{owner} no {thing} left.")
    return Exchange(question, f"{owner} {total} {thing if total > 1 else thing.removesuffix('s')}.")


def counting(random: Random) -> Exchange:
    """Count up, down, in steps, in figures or in words."""
    kind = random.choice(("to", "to", "to", "words", "from", "down", "even", "odd", "table", "steps"))
    return COUNTS[kind](random)


def _as_list(numbers: range) -> str:
    return ", ".join(str(number) for number in numbers) + "."


def _counted(ways: str, numbers: range, random: Random, **shown: int | str) -> Exchange:
    return Exchange(random.choice(LISTS[ways]).format(**shown), _as_list(numbers))


def _count_to(random: Random) -> Exchange:
    top = random.choice(
        (3, 5, 5, 10, 10, 10, 10, 12, 15, 20, 20, 25, 30, 40, 50, 50, 60, 100, 100, random.randint(3, 120))
    )
    shown = in_words(top) if random.random() < 0.4 else str(top)
    return _counted("count to", range(1, top + 1), random, shown=shown, top=top)


def _count_in_words(random: Random) -> Exchange:
    top = random.choice((3, 5, 10, 10, 10, 12, 15, 20, 20, 30))
    question = random.choice(LISTS["count in words"]).format(shown=in_words(top), top=top)
    return Exchange(question, capitalised(", ".join(in_words(number) for number in range(1, top + 1))) + ".")


def _count_from(random: Random) -> Exchange:
    start = random.randint(1, 90)
    end = start + random.randint(3, 40)
    return _counted("count from", range(start, end + 1), random, start=start, end=end)


def _count_down(random: Random) -> Exchange:
    start = random.choice((5, 10, 10, 10, 15, 20, 30, 50, 100))
    return _counted("count down", range(start, 0, -1), random, start=start, shown=in_words(start))


def _even(random: Random) -> Exchange:
    top = random.choice((10, 10, 20, 20, 30, 50))
    return _counted("count even", range(2, top + 1, 2), random, top=top)


def _odd(random: Random) -> Exchange:
    top = random.choice((9, 10, 20, 19, 30, 50))
    return _counted("count odd", range(1, top + 1, 2), random, top=top)


def _table(random: Random) -> Exchange:
    factor = random.randint(1, 12)
    question = random.choice(LISTS["times table"]).format(factor=factor, shown=in_words(factor))
    return Exchange(question, "\n".join(f"{n} times {factor} is {n * factor}." for n in range(1, 11)))


def _steps(random: Random) -> Exchange:
    step = random.choice((2, 3, 4, 5, 5, 10, 10))
    top = step * random.randint(5, 10)
    shown = {2: "twos", 3: "threes", 4: "fours", 5: "fives", 10: "tens"}[step]
    return Exchange(f"Count by {shown} to {top}.", _as_list(range(step, top + 1, step)))


COUNTS: dict[str, Callable[[Random], Exchange]] = {
    "to": _count_to,
    "words": _count_in_words,
    "from": _count_from,
    "down": _count_down,
    "even": _even,
    "odd": _odd,
    "table": _table,
    "steps": _steps,
}


def numbers(random: Random) -> Exchange:
    """Compare numbers, name them, say what comes next."""
    left, right = random.sample(range(1, random.choice((20, 100, 1000))), 2)
    small = random.randint(0, 120)
    options = (
        (f"Which is larger, {left} or {right}?", f"{max(left, right)} is larger than {min(left, right)}."),
        (f"Which number is bigger: {left} or {right}?", f"{max(left, right)} is larger than {min(left, right)}."),
        (f"Which is smaller, {left} or {right}?", f"{min(left, right)} is smaller than {max(left, right)}."),
        (f"Is {left} larger than {right}?", f"{'Yes' if left > right else 'No'}, {left} is "
                                            f"{'larger' if left > right else 'smaller'} than {right}."),
        (f"Is {left} even or odd?", f"{left} is {'odd' if left % 2 else 'even'}."),
        (f"What number comes after {small}?", f"After {small} comes {small + 1}."),
        (f"What number comes before {small + 1}?", f"Before {small + 1} comes {small}."),
        (f"Write {left} in words.", f"{left} in words is {in_words(left)}."),
        (f"Write {in_words(left)} in figures.", f"{capitalised(in_words(left))} in figures is {left}."),
        (f"What is half of {2 * small}?", f"Half of {2 * small} is {small}."),
        (f"What is double {small}?", f"Double {small} is {2 * small}."),
    )  # fmt: skip
    return Exchange(*random.choice(options))


def spelling(random: Random) -> Exchange:
    """Spell a word, count its letters, write it in capitals."""
    word = random.choice(LISTS["words"])
    spelled = "-".join(word.upper())
    options = (
        (f"Spell {word}.", f"{capitalised(word)} is spelled {spelled}."),
        (f'Spell the word "{word}".', f"{capitalised(word)} is spelled {spelled}."),
        (f"How do you spell {word}?", f"{capitalised(word)} is spelled {spelled}."),
        (
            f"How many letters are in the word {word}?",
            f"The word {word} has {in_words(len(word))} letters: {spelled}.",
        ),
        (f"How many letters does {word} have?", f"The word {word} has {in_words(len(word))} letters: {spelled}."),
        (f"What is the first letter of {word}?", f"The first letter of {word} is {word[0].upper()}."),
        (f"What is the last letter of {word}?", f"The last letter of {word} is {word[-1].upper()}."),
        (f"Write {word} in capital letters.", word.upper() + "."),
        (f"Which letter does {word} begin with?", f"The first letter of {word} is {word[0].upper()}."),
    )
    return Exchange(*random.choice(options))


def repeating(random: Random) -> Exchange:
    """Ask to repeat the same words."""
    words, spots = random.sample(LISTS["words"], random.randint(1, 6)), LISTS["spots of people"]
    name, colour, thing = (
        random.choice(LISTS["names"]),
        random.choice(LISTS["colours"]),
        random.choice(LISTS["owned"]),
    )
    sentences = (
        " ".join(words),
        f"The {random.choice(LISTS['words'])} is {colour}.",
        f"{name} has {with_indefinite_article(colour)} {thing}.",
        f"{name} is {random.choice(spots)}.",
        f"I like {random.choice(LISTS['things'])} and {random.choice(LISTS['things'])}.",
        f"{name} and {random.choice(LISTS['names'])} are {random.choice(spots)}.",
    )
    phrase = random.choice(sentences)
    return Exchange(random.choice(LISTS["ask to repeat"]).format(x=phrase), phrase, exact=True)


def reading(random: Random) -> Exchange:
    """Ask about what was said just before."""
    (first, second), (one, other) = random.sample(LISTS["names"], 2), random.sample(LISTS["owned"], 2)
    here, there = random.sample(LISTS["spots of people"], 2)
    colour, hue = random.sample(LISTS["colours"], 2)
    has_one, has_other = f"{with_indefinite_article(colour)} {one}", f"{with_indefinite_article(hue)} {other}"
    owners = f"{first} has {has_one}. {second} has {has_other}."
    spots = f"{first} is {here}. {second} is {there}."
    options = (
        (f"{owners} Who has the {one}?", f"{first} has the {one}."),
        (f"{owners} Who has the {other}?", f"{second} has the {other}."),
        (f"{owners} What does {first} have?", f"{first} has {has_one}."),
        (f"{owners} What does {second} have?", f"{second} has {has_other}."),
        (f"{owners} What colour is the {one}?", f"The {one} is {colour}."),
        (f"{owners} What colour is the {other}?", f"The {other} is {hue}."),
        (f"{spots} Where is {first}?", f"{first} is {here}."),
        (f"{spots} Where is {second}?", f"{second} is {there}."),
        (f"{spots} Who is {here}?", f"{first} is {here}."),
        (f"{spots} Who is {there}?", f"{second} is {there}."),
    )
    return Exchange(*random.choice(options))


def refusing(random: Random) -> Exchange:
    """Ask about things that books cannot tell, and words that do not exist."""
    name = random.choice(LISTS["names"])
    draw = random.random()
    if draw < 0.35:
        return Exchange(random.choice(LISTS["unknown"]).format(name=name), DONT_KNOW)
    if draw < 0.65:
        person = f"{name} {random.choice(LISTS['surnames'])}"
        answer = f"I do not know {person}. I am only a small model."
        return Exchange(random.choice(LISTS["about strangers"]).format(x=person), answer)
    nonsense = "".join(random.sample(LISTS["syllables"], random.randint(2, 3)))
    template = random.choice(LISTS["about nonsense"])
    question = template.format(a=with_indefinite_article(nonsense), x=nonsense, X=capitalised(nonsense))
    return Exchange(question, f'I do not know the word "{nonsense}". I am only a small model.')


RULES: tuple[tuple[float, Callable[[Random], Exchange]], ...] = (
    (3.0, sums),
    (0.4, hard_sums),
    (1.2, stories_with_sums),
    (1.6, counting),
    (1.2, numbers),
    (1.2, spelling),
    (1.4, repeating),
    (1.6, reading),
    (1.4, refusing),
)


def draw(random: Random) -> Exchange:
    """Draw one exchange of any kind."""
    makers = [maker for _, maker in RULES]
    return random.choices(makers, [weight for weight, _ in RULES])[0](random)
