"""Exit with 0 while a tariff's price, or a grid's carbon intensity, is high, else with 1.

For `distro-node join … --pause-when 'python3 pause_by_price.py URL PATH PAUSE RESUME STATE'`. PATH leads
through the JSON at URL, such as `data.0.intensity.forecast`; the step `now` takes the element of a list
that holds now. Above PAUSE the node pauses, below RESUME it works, between them nothing changes; for
what is good when high (a solar roof) give a PAUSE below RESUME. STATE is a file that remembers a pause.
"""

import datetime
import json
import sys
import urllib.request
from pathlib import Path

SPANS = (("from", "to"), ("valid_from", "valid_to"), ("startsAt", "endsAt"))


def when(text):
    """Return a time in ISO 8601; without a zone it is in UTC."""
    time = datetime.datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=datetime.UTC)


def holds(element, now):
    """Return whether an element of a tariff holds now; without an end it holds until further notice."""
    start, end = next((element[a], element.get(b)) for a, b in SPANS if a in element)
    return when(start) <= now and (end is None or now < when(end))


def number_at(value, path, now):
    """Return the number at a path."""
    for step in path.split("."):
        if step == "now":
            value = next(element for element in value if holds(element, now))
        else:
            value = value[int(step) if isinstance(value, list) else step]
    return float(value)


def main(url, path, pause, resume, state):
    """Return whether the node is to pause."""
    with urllib.request.urlopen(url, timeout=15) as answer:
        body = json.loads(answer.read(1 << 18))
    number = number_at(body, path, datetime.datetime.now(datetime.UTC))
    pause, resume, state = float(pause), float(resume), Path(state)
    sign = 1 if pause >= resume else -1
    bound = resume if state.exists() else pause
    paused = sign * number > sign * bound
    if paused:
        state.touch()
    else:
        state.unlink(missing_ok=True)
    return paused


if __name__ == "__main__":
    try:
        answer = 0 if main(*sys.argv[1:]) else 1
    except Exception as error:
        # Neither yes nor no: the node keeps the last answer for an hour.
        print(f"no number: {error!r}", file=sys.stderr)
        answer = 2
    sys.exit(answer)
