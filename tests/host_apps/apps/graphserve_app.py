"""graphserve: a router in one's own FastAPI object, around a LangGraph graph. It knows messages only, no calls of the client's tools."""

# It is installed in an environment of its own.
# mypy: disable-error-code="import-not-found"
# pyright: reportMissingImports=false

from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from graphserve import GraphRegistry, create_openai_router
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph

from tests.host_apps import script


class Model(BaseChatModel):  # type: ignore[misc]
    script: str

    @property
    def _llm_type(self) -> str:
        return "fake"

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _astream(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        script.begin(self.script)
        async for piece in script.pieces(self.script, len(messages)):
            yield ChatGenerationChunk(message=AIMessageChunk(piece))


def graph_of(name: str) -> Any:
    model = Model(script=name)

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph.compile()


registry = GraphRegistry()
for each in script.MODELS:
    registry.register(each, graph_of(each))
api = FastAPI()
api.include_router(create_openai_router(registry), prefix="/v1")
