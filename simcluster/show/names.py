"""What people call the parts of a step, wherever they are shown."""

from __future__ import annotations

PARTS = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "recompute",
    "exposed_tp": "tensor parallel, exposed",
    "exposed_pp": "pipeline sends, exposed",
    "exposed_dp": "data parallel, exposed",
    "exposed_cp": "context parallel, exposed",
    "exposed_ep": "expert parallel, exposed",
    "bubble": "bubble",
    "straggler_wait": "waiting for stragglers",
    "optimizer": "optimizer",
    "other": "other",
}
"""Parts of a step, by their key in the breakdown."""

REASONS = {
    "traffic": "what it sends, on free links",
    "hiding": "how much compute hides",
    "contention": "contention on links",
}
"""Why an axis' exposed communication changes (``results.attribution``)."""

INTERFERENCE = "compute slowed by communication"
