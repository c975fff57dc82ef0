"""An inference backend, with a Responses API and WebSocket mode on top."""

from ws_responses.app import ResponsesApp
from ws_responses.engine.engine import ResponsesEngine
from ws_responses.serve.backends import build
from ws_responses.serve.options import ServeOptions
from ws_responses.serve.renderers import renderer
from ws_responses.serve.served import Served, shared_options


def engine(options: ServeOptions) -> Served:
    """Return the app of ``serve --backend``.

    Raises:
        ConfigurationError: An option is wrong, or a package is missing.
        ImportError: A package is missing.
        UsageError: The command line lacks something.
    """
    built = build(options.source)
    app = ResponsesApp(
        ResponsesEngine(
            built.backend,
            renderer=renderer(options.source.renderer or built.renderer, built.gguf, options.source.template),
            models=built.models,
            hosted_tools=options.source.hosted_tools,
            compaction_key=options.chains.compaction_key,
        ),
        authorize="open",  # who comes as far as this has been let in already
        **shared_options(options),
    )
    path = options.mode.paths[0]
    return Served(
        app=app,
        middleware=app.middleware,
        what=f"a Responses API with WebSocket mode, answered by {built.what}",
        forwards=f"POST {path}, GET and DELETE {path}/ID, GET /v1/models",
        credentials="the key given here" if options.source.api_key else None,
        model=next(iter(built.models or ()), None),
        close=built.close,
    )
