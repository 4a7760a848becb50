"""The application in each of the states that the pictures show."""

from __future__ import annotations

from collections.abc import Callable

import soup_tui.bridge
from soup_engine.errors import ModelPathError
from soup_engine.metrics.snapshot import EngineSnapshot
from soup_tui.app import SoupApp
from soup_tui.bridge import Bridge, ServiceFailed, ServiceReady
from soup_tui.config import Settings
from soup_tui.glyphs import GLYPHS
from soup_tui.history import History
from soup_tui.service import AdapterListing, ProgressCallback, Service
from soup_tui.terminal import Terminal
from tests.support.still_service import StillService, adapters, log_entries
