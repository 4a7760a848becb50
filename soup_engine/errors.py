"""Every error the program raises on purpose, as one tree.

Callers tell errors apart by type, never by their text. The text is for people: one
sentence that says what is wrong and, where there is one, what would work.

::

    SoupError                               500 internal_error
    ├── CannotRunError                      503 cannot_run           (exit code 1 in the CLI)
    │   ├── ModelLoadError                  503 model_load_failed
    │   │   ├── ModelPathError              503 model_path_not_found
    │   │   └── UnsupportedModelError       503 model_unsupported
    │   ├── MissingPackageError             503 missing_package
    │   ├── DeviceError                     503 device_unavailable
    │   ├── InsufficientMemoryError         503 insufficient_memory
    │   ├── AddressInUseError               503 address_in_use
    │   ├── StateFileError                  503 state_file_invalid
    │   ├── PromptFileError                 503 prompt_file_invalid
    │   ├── DraftError                      503 draft_invalid
    │   └── InsufficientDiskError           507 insufficient_disk
    ├── ConfigError                         400 invalid_config       (exit code 2 in the CLI)
    ├── RequestError                        400 invalid_request
    │   ├── InvalidValueError               400 invalid_value
    │   ├── UnsupportedParameterError       400 unsupported_parameter
    │   ├── ContextLengthExceededError      400 context_length_exceeded
    │   ├── ChatTemplateError               400 chat_template_error
    │   ├── AuthenticationError             401 invalid_api_key
    │   ├── ForbiddenError                  403 forbidden
    │   ├── NotFoundError                   404 not_found
    │   │   ├── ModelNotFoundError          404 model_not_found
    │   │   └── RequestNotFoundError        404 request_not_found
    │   ├── DuplicateRequestError           409 duplicate_request
    │   ├── BodyTooLargeError               413 body_too_large
    │   ├── QueueFullError                  429 queue_full
    │   ├── AdapterError                    400 adapter_error
    │   │   ├── AdapterInvalidError         400 adapter_invalid
    │   │   ├── AdapterPathError            403 adapter_path_forbidden
    │   │   ├── AdapterNotFoundError        404 adapter_not_found
    │   │   ├── AdapterConflictError        409 adapter_conflict
    │   │   └── AdapterNotReadyError        503 adapter_not_ready
    │   └── ExportError                     400 export_error
    │       ├── ExportSourceError           400 export_source_invalid
    │       ├── ExportUnsupportedError      400 export_unsupported
    │       ├── ExportPathError             403 export_path_forbidden
    │       ├── ExportNotFoundError         404 export_not_found
    │       ├── ExportConflictError         409 export_conflict
    │       ├── ExportUnverifiedError       422 export_unverified
    │       └── ExportToolError             500 export_tool_failed
    ├── EngineStoppedError                  503 engine_stopped
    │   └── EngineSleepingError             503 engine_sleeping
    ├── RequestAbortedError                 503 request_aborted
    └── EngineStepError                     500 engine_step_failed
"""

from __future__ import annotations

from typing import ClassVar


class SoupError(Exception):
    """Root of the tree. ``status``, ``code`` and ``type`` are what HTTP clients see."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    type: ClassVar[str] = "server_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class CannotRunError(SoupError):
    """The program cannot start or go on: nothing the request itself could change."""

    status = 503
    code = "cannot_run"


class ModelLoadError(CannotRunError):
    code = "model_load_failed"


class ModelPathError(ModelLoadError):
    code = "model_path_not_found"


class UnsupportedModelError(ModelLoadError):
    """The engine would serve this model wrongly, so it refuses to serve it at all."""

    code = "model_unsupported"


class MissingPackageError(CannotRunError):
    code = "missing_package"


class DeviceError(CannotRunError):
    code = "device_unavailable"


class InsufficientMemoryError(CannotRunError):
    code = "insufficient_memory"


class AddressInUseError(CannotRunError):
    code = "address_in_use"


class StateFileError(CannotRunError):
    """The file that keeps what was loaded at run time cannot be read or written."""

    code = "state_file_invalid"


class PromptFileError(CannotRunError):
    """A file of prompts cannot be read, or no line of it can be used."""

    code = "prompt_file_invalid"


class DraftError(CannotRunError):
    """A draft cannot be made of, or for, or measured with this model."""

    code = "draft_invalid"


class InsufficientDiskError(CannotRunError):
    """What is to be written does not fit on the disk of its target."""

    status = 507
    code = "insufficient_disk"


class ConfigError(SoupError):
    """A setting is wrong or two settings contradict each other."""

    status = 400
    code = "invalid_config"
    type = "invalid_request_error"


class RequestError(SoupError):
    """The caller asked for something that cannot be done as asked."""

    status = 400
    code = "invalid_request"
    type = "invalid_request_error"


class InvalidValueError(RequestError):
    code = "invalid_value"


class UnsupportedParameterError(RequestError):
    code = "unsupported_parameter"


class ContextLengthExceededError(RequestError):
    code = "context_length_exceeded"


class ChatTemplateError(RequestError):
    """The model's chat template refused the messages; the message is its own reason."""

    code = "chat_template_error"


class AuthenticationError(RequestError):
    status = 401
    code = "invalid_api_key"
    type = "authentication_error"


class ForbiddenError(RequestError):
    status = 403
    code = "forbidden"
    type = "permission_error"


class NotFoundError(RequestError):
    status = 404
    code = "not_found"
    type = "not_found_error"


class ModelNotFoundError(NotFoundError):
    """Says nothing about what is there, in the same words wherever it is raised."""

    code = "model_not_found"

    def __init__(
        self,
        message: str = "There is no such model here; GET /v1/models lists them.",
        *,
        param: str | None = "model",
    ) -> None:
        super().__init__(message, param=param)


class RequestNotFoundError(NotFoundError):
    code = "request_not_found"


class DuplicateRequestError(RequestError):
    status = 409
    code = "duplicate_request"


class BodyTooLargeError(RequestError):
    status = 413
    code = "body_too_large"


class QueueFullError(RequestError):
    """The waiting queue is full; ``retry_after`` is a hint in whole seconds."""

    status = 429
    code = "queue_full"
    type = "rate_limit_error"

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class AdapterError(RequestError):
    """Something is wrong with an adapter, its name or its place."""

    code = "adapter_error"


class AdapterInvalidError(AdapterError):
    """The files of an adapter are damaged, do not fit the base, or ask for what is not built."""

    code = "adapter_invalid"


class AdapterPathError(AdapterError):
    """The path lies outside the folders that adapters may be loaded from."""

    status = 403
    code = "adapter_path_forbidden"
    type = "permission_error"


class AdapterNotFoundError(AdapterError):
    status = 404
    code = "adapter_not_found"
    type = "not_found_error"


class AdapterConflictError(AdapterError):
    """A name is taken, or something else is being done to the adapter."""

    status = 409
    code = "adapter_conflict"


class AdapterNotReadyError(AdapterError):
    """The adapter is known but cannot answer: it is being loaded, or could not be."""

    status = 503
    code = "adapter_not_ready"
    type = "server_error"


class ExportError(RequestError):
    """A model or adapter cannot be merged or converted as asked."""

    code = "export_error"


class ExportSourceError(ExportError):
    """The files of the model or adapter are missing, damaged, or do not fit each other."""

    code = "export_source_invalid"


class ExportUnsupportedError(ExportError):
    """The format, or the converter here, has no way to express this model faithfully."""

    code = "export_unsupported"


class ExportPathError(ExportError):
    """A source or a target lies outside the folders that exports may use."""

    status = 403
    code = "export_path_forbidden"
    type = "permission_error"


class ExportNotFoundError(ExportError):
    status = 404
    code = "export_not_found"
    type = "not_found_error"


class ExportConflictError(ExportError):
    """The target is there already, or another export writes it."""

    status = 409
    code = "export_conflict"


class ExportUnverifiedError(ExportError):
    """The result answers too differently from its source; it was put aside."""

    status = 422
    code = "export_unverified"


class ExportToolError(ExportError):
    """A program that the conversion runs is missing or failed."""

    status = 500
    code = "export_tool_failed"
    type = "server_error"


class EngineStoppedError(SoupError):
    """The engine is stopping or stopped: the request was not, or not fully, answered."""

    status = 503
    code = "engine_stopped"


class EngineSleepingError(EngineStoppedError):
    """The weights are off the device; what was asked for needs them."""

    code = "engine_sleeping"

    def __init__(
        self,
        message: str = "The engine is asleep; POST /wake_up wakes it.",
        *,
        param: str | None = None,
    ) -> None:
        super().__init__(message, param=param)


class RequestAbortedError(SoupError):
    """Somebody else ended the request before its answer was complete."""

    status = 503
    code = "request_aborted"


class EngineStepError(SoupError):
    """A step of the engine failed; the requests that were in it end with this error."""

    code = "engine_step_failed"


_LONGEST_LINE = 300


def shortened(text: str) -> str:
    """The start of somebody else's message, on one line of at most 300 characters."""
    return " ".join(text.split())[:_LONGEST_LINE]


def reason_of(error: BaseException) -> str:
    """What another library's error says, shortened; the name of its kind where it says nothing."""
    return shortened(str(error)) or type(error).__name__
