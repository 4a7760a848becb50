"""The screens of the terminal application, one a module."""

from screens.adapters import AdaptersScreen
from screens.chat import ChatScreen
from screens.drafts import DraftsScreen
from screens.export import ExportScreen
from screens.frame import WorkbenchScreen
from screens.latency import LatencyScreen
from screens.logs import LogsScreen
from screens.serving import ServingScreen
from screens.traffic import TrafficScreen

WORKBENCH: tuple[type[WorkbenchScreen], ...] = (
    ServingScreen,
    LatencyScreen,
    AdaptersScreen,
    ExportScreen,
    DraftsScreen,
    ChatScreen,
    TrafficScreen,
    LogsScreen,
)
"""In the order of their digits."""
