"""The safety room: classifiers see what is new in a turn, and text leaves when it has passed.

app = ResponsesWebSocketMiddleware(app, safety=Safety(TermClassifier(["a term"])))
"""

from ws_responses.safety.gate import GateOptions, OutputGate
from ws_responses.safety.guard import Downstream, Guard
from ws_responses.safety.input import Reading, read_input
from ws_responses.safety.judge import Judge
from ws_responses.safety.options import Fail, Mode, Output, Safety, Screen
from ws_responses.safety.terms import TermClassifier
from ws_responses.safety.turn import SafetyTurn
from ws_responses.safety.verdict import (
    About,
    Action,
    Carried,
    Classifier,
    Classify,
    ContentBlocked,
    Judgement,
    OutputTooLarge,
    Piece,
    SafetyInput,
    SafetyState,
    SafetyUnavailable,
    Stage,
    TooManyTexts,
    Verdict,
)

__all__ = [
    "About",
    "Action",
    "Carried",
    "Classifier",
    "Classify",
    "ContentBlocked",
    "Downstream",
    "Fail",
    "GateOptions",
    "Guard",
    "Judge",
    "Judgement",
    "Mode",
    "Output",
    "OutputGate",
    "OutputTooLarge",
    "Piece",
    "Reading",
    "Safety",
    "SafetyInput",
    "SafetyState",
    "SafetyTurn",
    "SafetyUnavailable",
    "Screen",
    "Stage",
    "TermClassifier",
    "TooManyTexts",
    "Verdict",
    "read_input",
]
