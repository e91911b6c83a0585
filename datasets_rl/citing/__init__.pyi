from .statement import Statement as Statement
from .write import WrittenStatement as WrittenStatement
from .write import write_statement as write_statement
