"""Processes of SGLang."""


def kill_process_tree(parent_pid: int, include_parent: bool = True) -> None:
    """The double has one process only."""
    assert parent_pid and not include_parent
