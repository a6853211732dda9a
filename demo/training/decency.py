"""Filter what the demo must not say, in words, definitions and prose."""

import re

_STEMS = (
    "sex|genital|penis|vagin|vulva|intercourse|prostitut|whore|harlot|slut|erotic|porn|lust|lewd|"
    "obscen|vulgar|offensive|derogat|disparag|slur|racial|racis|ethnic|negro|nigg|coon|darkie|jew|"
    "gentile|semit|islam|muslim|moslem|infidel|heathen|homosexual|lesbian|gay|queer|transvest|"
    "bisexual|retard|imbecile|moron|cretin|feces|faec|excrement|urin|defecat|buttock|anus|anal|"
    "rectum|testic|scrot|semen|sperm|ejacul|orgasm|copulat|coitus|rape|raping|rapist|molest|incest|"
    "concubin|fornicat|adulter|circumcis|foreskin|womb|whoring|menstru|nipple|breast|bosom|naked|"
    "nude|suicid|murder|slaughter|massacre|genocid|torture|lynch|terroris|nazi|hitler|fascis|slave|"
    "cocaine|heroin|marijuana|cannabis|narcotic|opium|drunk|fart|piss|shit|fuck|bitch|bastard|damn|"
    "crap|ass|arse|cock|dick|tit|pussy|cunt|crotch|wank|screw|bugger|abort|castrat|eunuch|cripple|"
    "spastic|savage|primitive people|black person|white person|blacks|squaw|gypsy|kill|behead|"
    "strangl|poison|corpse|cadaver|venereal|syphil|gonorrh|condom|contracept|pregnan|virgin|puberty|"
    "bodily waste"
)
# Short stems match whole words only: "ass" must not exclude "class".
_WHOLE = {
    "ass",
    "cock",
    "dick",
    "tit",
    "anal",
    "gay",
    "coon",
    "jew",
    "kill",
    "damn",
    "crap",
    "rape",
    "arse",
    "urin",
    "lust",
}
_PATTERN = re.compile(
    "|".join(
        rf"\b{stem}(?:s|es|ed|ing|e|ine|y|ish|ism)?\b" if stem in _WHOLE else rf"\b{stem}"
        for stem in _STEMS.split("|")
    ),
    flags=re.IGNORECASE,
)


def is_decent(text: str) -> bool:
    """Return whether the text has nothing vulgar, sexual, hateful or cruel."""
    return _PATTERN.search(text) is None
