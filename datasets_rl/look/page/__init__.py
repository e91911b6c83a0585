"""Viewer of stored datasets: a page in the browser, served on loopback or exported as one file.

Panel                  reads one stored dataset, one episode at a time
distributions, curves  pure functions from arrays to what the page draws
documents              the addresses of the page, and the JSON document of each
server, report         both answer with these documents: over HTTP, or within one HTML file
assets                 the page; it needs neither a build step nor a network
"""

from datasets_rl.look.page.panel import Panel
from datasets_rl.look.page.report import report_page
from datasets_rl.look.page.server import ViewServer

__all__ = ["Panel", "ViewServer", "report_page"]
