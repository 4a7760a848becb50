"""What the help screen says, from the table of actions."""

from __future__ import annotations

from soup_tui.actions import APP, SCREENS, of_scope
from soup_tui.keymap import Preferences


def help_text(scope: str, preferences: Preferences) -> str:
    """Keys of one screen, then those that work everywhere, then those of the other screens."""
    others = [name for name in SCREENS if name != scope]
    parts = [_part(f"{scope.title()} screen", scope, preferences)]
    parts.append(_part("Everywhere", APP, preferences))
    parts.append(
        "Where a text is typed, keys write; escape leaves the text.\n"
        "tui.toml in the configuration folder can change theme, characters and keys:\n"
        'by the names at the right, as "serving.abort" = "k" under [keys].'
    )
    parts += [_part(f"{name.title()} screen", name, preferences) for name in others]
    return "\n\n".join(part for part in parts if part)


def _part(title: str, scope: str, preferences: Preferences) -> str:
    lines = [
        f"  {preferences.key_name(action.id):<6} {action.title:<40} {action.id}"
        for action in of_scope(scope)
    ]
    return "\n".join([title, *lines]) if lines else ""
