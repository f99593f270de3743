"""A self-contained HTML report about one or several runs: job, results, time breakdown, timelines.

``report_page`` builds it from entries, which ``make_entry`` and ``make_saved_entry`` make.
"""

from simcluster.interactive.report.entry import ReportEntry, make_entry, make_saved_entry
from simcluster.interactive.report.page import report_page

__all__ = ["ReportEntry", "make_entry", "make_saved_entry", "report_page"]
