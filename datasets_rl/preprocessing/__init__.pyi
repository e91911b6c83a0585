from .base import DataStep as DataStep
from .base import Step as Step
from .functions import Function as Function
from .plan import plan_result as plan_result
from .recipe import Recipe as Recipe
from .run import Preview as Preview
from .run import preprocess as preprocess
from .run import preview as preview
