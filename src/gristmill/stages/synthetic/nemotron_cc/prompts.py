"""Prompts for rewriting documents as in Nemotron-CC (Su et al. 2024, arXiv:2412.02595), in our own words.

The paper describes what each rewrite should do; these prompts request it. `{document}` is the placeholder of the
document. Post-processing looks for the opening lines that some prompts request, so a custom prompt should request them
too.
"""

from __future__ import annotations

NEMOTRON_CC_SYSTEM_PROMPT = (
    "You are a careful writer. You work only from the text that the user provides: you add no facts of your own, and "
    "you answer in the format that the user asks for, without comments."
)

NEMOTRON_CC_DISTILL_SYSTEM_PROMPT = (
    "You are an editor who condenses texts. You keep what a reader needs to know and leave out the rest. You work only "
    "from the text that the user provides, add no facts of your own, and answer in the format that the user asks for."
)

REPHRASED_PREFIX = "Here is a paraphrased version:"
"""How an answer to `WIKIPEDIA_REPHRASING_PROMPT_TEMPLATE` begins."""

WIKIPEDIA_REPHRASING_PROMPT_TEMPLATE = f"""\
Rewrite the text between the marks in the language and style of a Wikipedia article: precise, neutral, well organised, \
in complete sentences. Say everything that the text says and nothing that it does not say. Leave out advertising, \
navigation and appeals to the reader. Write plain paragraphs without headings.

<text>
{{document}}
</text>

Begin your answer with the line "{REPHRASED_PREFIX}" and write only the rewritten text after it."""

DIVERSE_QA_PREFIX = "Here are the questions and answers based on the provided text:"
"""How an answer to `DIVERSE_QA_PROMPT_TEMPLATE` begins."""

DIVERSE_QA_PROMPT_TEMPLATE = f"""\
Write up to eight questions with their answers about the text between the marks.

Rules:
- Vary the kind of question: yes or no, open (why, how, what, who, when, where), multiple choice with the options in \
the question, a comparison, and one that asks for a solution or a conclusion.
- Ask about facts and relations that the text states. Someone who reads only the text must be able to answer.
- Ask so that the question makes sense without the text: name what you ask about.
- Keep answers short and correct. For multiple choice, repeat the chosen option.
- Write fewer questions when the text is short, and none twice.

<text>
{{document}}
</text>

Begin your answer with the line "{DIVERSE_QA_PREFIX}". Then write each pair on two lines:
- Question: …
- Answer: …"""

DISTILLED_PREFIX = "Paraphrased Text:"
"""How an answer to `DISTILL_PROMPT_TEMPLATE` begins."""

DISTILL_PROMPT_TEMPLATE = f"""\
Condense the text between the marks into a clear passage of plain prose.

Rules:
- Keep the key facts, names, numbers, definitions and the reasoning that connects them, in the author's order.
- Leave out repetition, small talk, advertising and anything about the page itself.
- Do not add explanations or opinions, and do not mention that this is a summary.

<text>
{{document}}
</text>

Begin your answer with the line "{DISTILLED_PREFIX}" and write only the passage after it."""

EXTRACT_KNOWLEDGE_PROMPT_TEMPLATE = """\
Rewrite the knowledge in the text between the marks as one or more passages in the style of a textbook.

Rules:
- Keep what a student could learn from the text: facts, concepts, procedures, causes and effects, and worked \
examples. Leave out everything else.
- Explain in full sentences what the text only implies by its layout, such as tables and lists.
- Add nothing that the text does not support. If it teaches nothing, answer with an empty passage.

<text>
{document}
</text>

Write only the passages, separated by blank lines, without headings and without comments."""

KNOWLEDGE_LIST_PROMPT_TEMPLATE = """\
List what the text between the marks says that is worth remembering.

Rules:
- One item per line, each beginning with "- ". Continue a long item on a line that begins with two spaces.
- Each item states one fact, concept or relation in a full sentence that can be understood without the text.
- Order the items as the text does. Leave out opinions about the page, advertising and repetition.

<text>
{document}
</text>

Write only the list."""
