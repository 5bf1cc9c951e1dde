"""Room for the files that a process holds open: each array that is mapped from a file takes one."""

from __future__ import annotations

_OTHERS = 128
"""Files that Python, its libraries and onnxruntime hold open."""
_COPIES = 4
"""So often an array may be mapped at once: in a model as read, in one at other sizes, in what it is compared with."""


def make_room(count: int) -> None:
    """Let this process map so many arrays, as far as the system lets it; does nothing where there is no limit.

    Systems begin with a low limit (1024 on Linux, 256 on macOS) that a process may raise by itself up to a high one.

    Args:
        count: of arrays, each of which is mapped by itself, were they of one file.
    """
    try:
        import resource
    except ImportError:  # Windows
        return
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _COPIES * count + _OTHERS
    if most != resource.RLIM_INFINITY:
        wanted = min(wanted, most)
    if limit != resource.RLIM_INFINITY and limit < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
