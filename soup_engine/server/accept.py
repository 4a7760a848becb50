"""The little of content negotiation that this server needs (RFC 9110, section 12.5.1)."""

from __future__ import annotations


def quality(accept: str, media_type: str) -> float:
    """Weight that an ``Accept`` header gives to a type it names itself, from 0 to 1.

    Ranges like ``*/*`` name nothing: who sends only those takes what the server has by default.
    """
    best = 0.0
    for item in accept.split(","):
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        if name != media_type:
            continue
        weight = 1.0
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip() == "q":
                try:
                    weight = min(1.0, max(0.0, float(value)))
                except ValueError:
                    weight = 0.0
        best = max(best, weight)
    return best
