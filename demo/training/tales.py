"""Combine beats into short tales: everyday English in endless variations."""

from dataclasses import dataclass
from random import Random

from demo.training.exchanges import Exchange, capitalised, with_indefinite_article
from demo.training.phrases import BEATS, LISTS, PLOTS


@dataclass(frozen=True, slots=True)
class Cast:
    """The characters and the place of a tale."""

    hero: str
    friend: str
    name: str
    other: str
    place: str
    female: bool

    def words(self, random: Random) -> dict[str, str]:
        """Return everything that a beat may mention. Small things are drawn again each time."""
        he, him, his = ("she", "her", "her") if self.female else ("he", "him", "his")
        spot, trait = random.choice(LISTS["spots"]), random.choice(LISTS["traits"])
        return {
            "hero": self.hero, "a hero": with_indefinite_article(self.hero),
            "friend": self.friend, "a friend": with_indefinite_article(self.friend),
            "trait": trait, "a trait": with_indefinite_article(trait),
            "name": self.name, "other": self.other,
            "place": self.place, "place_first": capitalised(self.place),
            "thing": random.choice(LISTS["lost things"]), "food": random.choice(LISTS["foods"]),
            "spot": spot, "spot_first": capitalised(spot), "weather": random.choice(LISTS["weathers"]),
            "he": he, "him": him, "his": his, "himself": f"{him}self",
            "He": capitalised(he), "His": capitalised(his),
        }  # fmt: skip


COUNTERPARTS = {
    "girl": "boy",
    "boy": "girl",
    "king": "queen",
    "queen": "king",
    "prince": "princess",
    "princess": "prince",
}
WOMEN = frozenset(LISTS["women"])


def cast(random: Random, hero: str | None = None, name: str | None = None) -> Cast:
    """Choose the characters. Hero and name may be given."""
    chosen = hero or random.choice(LISTS["beasts"] + LISTS["people"])
    friend = random.choice([kind for kind in LISTS["beasts"] if kind != chosen])
    given, other = random.sample([known for known in LISTS["names"] if known != name], 2)
    given = name or given
    female = given in WOMEN
    if chosen in COUNTERPARTS and (chosen in ("girl", "queen", "princess")) != female:
        chosen = COUNTERPARTS[chosen]
    return Cast(chosen, friend, given, other, random.choice(LISTS["places"]), female)


def episode(who: Cast, plot: str, random: Random, *, opening: bool) -> list[str]:
    """Return the sentences of one adventure."""
    words = who.words(random)
    beats = list(PLOTS[plot])
    if plot in ("lost", "found"):
        beats = BEATS["morning"] + beats
    beats = (BEATS["opening"] if opening else []) + beats + BEATS["end"]
    return [capitalised(random.choice(beat).format(**words)) for beat in beats]


def tale(random: Random, who: Cast | None = None) -> str:
    """Return one short tale."""
    told = " ".join(episode(who or cast(random), random.choice(list(PLOTS)), random, opening=True))
    return f"{told} {random.choice(LISTS['morals'])}" if random.random() < 0.3 else told


def long_tale(random: Random, who: Cast | None = None) -> str:
    """Return several adventures of the same hero, one per paragraph."""
    who = who or cast(random)
    plots = random.sample(list(PLOTS), random.randint(3, 6))
    paragraphs = [" ".join(episode(who, plots[0], random, opening=True))]
    for plot in plots[1:]:
        friend = random.choice([kind for kind in LISTS["beasts"] if kind != who.hero])
        other = random.choice([known for known in LISTS["names"] if known != who.name])
        who = Cast(who.hero, friend, who.name, other, who.place, who.female)
        paragraphs.append(" ".join((random.choice(LISTS["links"]), *episode(who, plot, random, opening=False))))
    paragraphs.append(random.choice(LISTS["morals"]))
    return "\n\n".join(paragraphs)


def short_or_long(random: Random) -> str:
    """Return a tale, sometimes a long one."""
    return (long_tale if random.random() < 0.1 else tale)(random)


def draw(random: Random) -> Exchange:
    """Draw a request for a tale about someone, with the tale."""
    long = random.random() < 0.12
    kind = random.choice(LISTS["beasts"] + LISTS["people"])
    name = random.choice(LISTS["names"])
    who = cast(random, hero=kind, name=name)
    size = "a long story" if long else random.choice(("a story", "a short story", "a tale", "a little story"))
    verb = random.choice(
        ("Tell me", "Tell me", "Write", "Write me", "Please tell me", "Can you tell me", "I want to hear")
    )
    about = random.choice((
        f"about {with_indefinite_article(who.hero)} named {name}",
        f"about {with_indefinite_article(who.hero)} called {name}",
        f"about {name} the {who.hero}",
        f"about {with_indefinite_article(who.hero)}",
        f"about {with_indefinite_article(who.hero)} and {with_indefinite_article(who.friend)}",
        f"about {name}",
    ))  # fmt: skip
    end = "?" if verb.startswith("Can") else "."
    return Exchange(f"{verb} {size} {about}{end}", (long_tale if long else tale)(random, who))
