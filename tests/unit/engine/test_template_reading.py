from soup_engine.engine.template_reading import names_read, unread

MESSAGES = [{"role": "user", "content": "Hi", "name": "ann"}]
LOOP = "{%% for message in messages %%}%s{{ message.content }}{%% endfor %%}"


def test_what_is_read_is_not_listed() -> None:
    plain, variable = LOOP % "", LOOP % "{% if thinking %}x{% endif %}"
    assert unread(plain, MESSAGES, {"thinking": True}) == (
        "chat_template_kwargs.thinking",
        "messages.name",
    )
    assert unread(variable, MESSAGES[:0], {"thinking": True}) == ()
    for reads_name in ("{{ message.name }}", "{{ message['name'] }}", "{{ message.get('name') }}"):
        assert unread(LOOP % reads_name, MESSAGES, {}) == ()


def test_a_variable_that_the_template_sets_itself_is_not_the_callers() -> None:
    assert unread("{% set mood = 1 %}{{ mood }}", (), {"mood": 2}) == ("chat_template_kwargs.mood",)


def test_what_cannot_be_told_is_not_listed() -> None:
    for source in (LOOP % "{{ message | tojson }}", LOOP % "{{ message.items() }}", "{% odd %}"):
        assert names_read(source) is None
        assert unread(source, MESSAGES, {"thinking": True}) == ()


def test_the_plain_format_reads_roles_and_contents_only() -> None:
    assert unread(None, MESSAGES, {"a": 1}) == ("chat_template_kwargs.a", "messages.name")
