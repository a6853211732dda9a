"""How models write tool calls: parsers for streamed text, and grammars that allow nothing else.

Modules:
    bare           Answers that consist of calls: an object with a known function's name, or several separated by
                   semicolons
    forms          The text around a call's name and arguments, by format
    grammar        The constraint of an answer as a grammar for llguidance (its variant of Lark)
    harmony        The channels of gpt-oss: analysis is thought, final is content, and a message with a recipient
                   is a call
    json_reader    JSON read character by character: the end of a value, and a tool call that is written as an
                   object
    markers        Detection of marks in text that arrives in pieces
    named          Calls whose function stands before the arguments: [TOOL_CALLS]name[ARGS]{...}, and DeepSeek's
    parser_choice  The choice of the parser for a model's answer to one request
    speech         The parts of a model's answer: content, thoughts, and tool calls in pieces as they arrive
    tagged         Calls as objects between marks in the text: <tool_call>{...}</tool_call>, [TOOL_CALLS][{...},
                   {...}]
    thoughts       Thoughts, separated from the text that follows them
    white_space    Content without the white space that only separates calls from it
"""
