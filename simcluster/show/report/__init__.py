"""A self-contained HTML page about one or several runs: the job, the answer, where the time went, the timelines.

``page`` builds it from entries; ``entry_of_result`` and ``entry_of_saved`` make those. Nothing here prints or writes.
"""

from simcluster.show.report.entry import Entry, entry_of_result, entry_of_saved
from simcluster.show.report.page import page

__all__ = ["Entry", "entry_of_result", "entry_of_saved", "page"]
