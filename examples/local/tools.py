"""Four small tools, which a model of any size can learn from their descriptions."""

from datetime import UTC, datetime, timedelta

OFFSETS = {"london": 0, "bergen": 1, "paris": 1, "cairo": 2, "tokyo": 9, "new york": -5}
NUMBERS = {"anna": "555-0134", "peter": "555-0178", "maria": "555-0102"}


def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"The weather in {city}: 12 degrees, light rain."


def add(a: float, b: float) -> str:
    """Add two numbers and return the sum."""
    return f"{a + b:g}"


def phone_number(name: str) -> str:
    """Look up the phone number of a person by name."""
    return NUMBERS.get(name.lower(), f"There is no number of {name}.")


def local_time(city: str) -> str:
    """Return the current local time in a city."""
    offset = OFFSETS.get(city.lower())
    if offset is None:
        return f"The time in {city} is unknown."
    return f"{datetime.now(UTC) + timedelta(hours=offset):%H:%M}"
