from .base import ExportFormat as ExportFormat
from .content import Content as Content
from .formats import FORMATS as FORMATS
from .run import ExportPlan as ExportPlan
from .run import export as export
from .run import plan_export as plan_export
from .run import run_export as run_export
