"""For the tests of apps that use effects: the app's own Effects on a test's database, its clock and its crashes.

    def test_a_page_goes_out_once() -> None:
        with Toolkit(app) as toolkit:
            alert("disk full")                                     # the app's code, which enqueues
            toolkit.assert_enqueued("pager.page", team="db")
            toolkit.drain()

Under pytest the fixture `effects_toolkit` gives one. The database is a real one, with the real worker.
"""

from effects.kit.network import NetworkRefused
from effects.testing.recorder import Captured
from effects.testing.toolkit import Enqueued, Toolkit

__all__ = ["Captured", "Enqueued", "NetworkRefused", "Toolkit"]
