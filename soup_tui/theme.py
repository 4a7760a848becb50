"""The themes of our own: warm on dark, ink on paper. Textual's can be chosen, too."""

from __future__ import annotations

from textual.theme import Theme

DARK = Theme(
    name="soup-dark",
    dark=True,
    primary="#e0a458",
    secondary="#7fa99b",
    accent="#d97757",
    foreground="#d8d2c4",
    background="#16171a",
    surface="#1d1f23",
    panel="#282a30",
    success="#8fb573",
    warning="#e3b34f",
    error="#e0685e",
    variables={
        "rule": "#3b3e46",
        "series-low": "#7fa99b",
        "series-mid": "#e0a458",
        "series-high": "#d8695c",
        "footer-key-foreground": "#e0a458",
        "input-selection-background": "#e0a458 35%",
        "border": "#e0a458",
        "border-blurred": "#3b3e46",
    },
)
LIGHT = Theme(
    name="soup-light",
    dark=False,
    primary="#9a5b13",
    secondary="#2f6f62",
    accent="#b3432b",
    foreground="#2c2a26",
    background="#faf7f0",
    surface="#f2ede2",
    panel="#e6dfd0",
    success="#41751f",
    warning="#8f6400",
    error="#b3261e",
    variables={
        "rule": "#cfc6b4",
        "series-low": "#2f6f62",
        "series-mid": "#9a5b13",
        "series-high": "#b3261e",
        "footer-key-foreground": "#9a5b13",
        "input-selection-background": "#9a5b13 30%",
        "border": "#9a5b13",
        "border-blurred": "#cfc6b4",
    },
)
THEMES = (DARK, LIGHT)


def variable_defaults(theme: Theme) -> dict[str, str]:
    """Our variables for themes that do not know them."""
    colours = theme.to_color_system().generate()
    shade = "panel-lighten-2" if theme.dark else "panel-darken-2"
    return {
        "rule": colours[shade],
        "series-low": colours["secondary"],
        "series-mid": colours["primary"],
        "series-high": colours["error"],
    }
