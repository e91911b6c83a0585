from .statement import Statement as Statement
from .write import Written as Written
from .write import write_statement as write_statement
