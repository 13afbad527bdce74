"""What the target is asked to write about, so that a draft can learn its ways: tasks about topics.

The requests that acceptance is measured on, pyspec.bench's, are not among these.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

TOPICS = """
bees|bread|volcanoes|the moon|guitars|chess|coffee|tea|glaciers|penguins|elephants|trains|bridges|castles|the sea|
rivers|honey|clocks|maps|photography|painting|opera|jazz|poetry|novels|theatre|cinema|dance|yoga|running|swimming|
cycling|hiking|camping|sailing|fishing|gardening|roses|oak trees|mushrooms|apples|potatoes|rice|cheese|chocolate|
wine|olive oil|pasta|curry|salads|breakfast|school lunches|healthy eating|sleep|stress|headaches|vaccines|the heart|
the brain|bones|teeth|eyesight|colours|light|sound|gravity|magnets|electricity|batteries|solar panels|wind turbines|
nuclear power|engines|cars|buses|aeroplanes|rockets|satellites|planets|stars|black holes|galaxies|comets|
earthquakes|storms|rain|snow|deserts|rainforests|coral reefs|whales|sharks|dolphins|owls|eagles|butterflies|ants|
spiders|snakes|dinosaurs|fossils|ancient Egypt|the Roman Empire|the Middle Ages|the Renaissance|
the Industrial Revolution|the French Revolution|the printing press|the telephone|the internet|computers|
artificial intelligence|robots|video games|databases|encryption|passwords|e-mail|social media|newspapers|libraries|
museums|schools|universities|exams|homework|learning languages|grammar|spelling|handwriting|public speaking|
job interviews|working from home|meetings|teamwork|leadership|time management|saving money|budgets|taxes|insurance|
banks|inflation|trade|markets|small businesses|advertising|customers|recycling|plastic|water|clean air|
climate change|energy|forests|farming|cities|villages|houses|furniture|kitchens|bathrooms|moving to a new flat|
neighbours|friendship|families|children|grandparents|birthdays|weddings|holidays|travel by train|airports|hotels|
passports|beaches|mountains|islands|Japan|Italy|Brazil|Kenya|India|Norway|Canada|Australia|New York|Paris|football|
tennis|basketball|the Olympic Games|statistics|probability|fractions|geometry|algebra|prime numbers|democracy|
elections|laws|courts|human rights|peace|kindness|honesty|courage|happiness|memory|dreams|music|silence
""".replace("\n", "").split("|")

PROBLEMS = """
my bicycle chain keeps falling off|my cat does not eat|my laptop is very slow|I can't sleep before exams|
my cake does not rise|my roof leaks when it rains|my neighbour plays loud music|my plants lose their leaves|
I forget names all the time|my phone battery is empty by noon|my child is afraid of the dark|
my car makes a strange noise|I am late for work every day|my knee hurts after running|my boss never listens|
my room is too hot in summer|I spend too much money|my dog barks at night|the wifi in my flat is weak|
my bread is always dry|I am nervous when I speak in public|my kitchen smells of fish|my grass turns brown|
I have no time to read|my team misses every deadline|my old jumper has a hole|I am bored on Sundays|
I don't know what to cook tonight|my window does not close|I want to drink less coffee
""".replace("\n", "").split("|")

CHAT = (
    "What is {t}?", "Tell me about {t}.", "Why is {t} important?", "How does {t} work?",
    "Give me five facts about {t}.", "What should a beginner know about {t}?", "Explain {t} to a child.",
    "What are common mistakes people make with {t}?", "What is the difference between {t} and {u}?",
    "How can I learn more about {t}?", "What is the history of {t}?",
    "Which is better for a weekend, {t} or {u}? Please explain.", "Can you summarise what is known about {t}?",
    "What are the pros and cons of {t}?", "Answer in one paragraph: what makes {t} interesting?",
    "Is {t} good for you?", "I have to give a talk about {t}. What should I say?",
    "What questions could I ask an expert on {t}?", "How did {t} change over the last hundred years?",
    "Give me an example of how {t} affects daily life.",
)  # fmt: skip
HELP = (
    "{p}. What can I do?", "Help! {p}.", "{p}. What could be the reason?", "{p}. Can you give me some advice?",
    "{p}. Give me a plan in five steps.", "Write an e-mail to a friend who says: {p}.",
    "Write a short dialogue between two people about this: {p}.",
)  # fmt: skip
PROSE = (
    "Write a short story about {t}.", "Write an essay about {t}.", "Write a poem about {t}.",
    "Write a letter to a friend about {t}.", "Describe a day in the life of someone who cares about {t}.",
    "Write the first page of a novel in which {t} and {u} play a role.", "Write a blog post about {t}.",
    "Write a newspaper article about {t}.", "Write a speech about {t}.", "Write a fairy tale about {t}.",
    "Describe {t} in three paragraphs.", "Write a dialogue between a teacher and a student about {t}.",
)  # fmt: skip
LISTS = (
    "List ten things to know about {t}, with a reason for each.", "Make a shopping list for a day of {t}.",
    "Give step-by-step instructions for someone new to {t}.",
    "Make a table of advantages and disadvantages of {t}.",
    "Name seven words that have to do with {t} and explain each.", "Plan a week around {t}, day by day.",
    "Write a quiz with five questions and answers about {t}.", "Write an outline for a book about {t}.",
)  # fmt: skip
CODE = (
    "Write a Python function that {c}.", "Write a Python class for {o}, with docstrings.",
    "Write a Python program that {c}.", "Write a JavaScript function that {c}.", "Write a C function that {c}.",
    "Write unit tests for a function that {c}.", "Write an SQL table for {o} and a query on it.",
    "Write a shell script that {c}.", "Write a Java class for {o}.", "Explain step by step how a program {c}.",
    "Write an HTML page about {t}.",
)  # fmt: skip
DOES = """
sorts a list of numbers|reverses a string|checks whether a number is prime|finds the largest element of a list|
reads a CSV file and prints the sum of a column|removes duplicates from a list|counts the vowels in a text|
merges two sorted lists|computes the factorial of a number|converts Celsius to Fahrenheit|
finds the shortest word in a sentence|checks whether a word is a palindrome|splits a list into chunks|
downloads a file|renames all files in a folder|computes the mean and the median|rolls two dice|generates a password|
validates an e-mail address|parses a date|multiplies two matrices|searches a sorted list by halving|
prints a multiplication table|counts the lines of a file|draws a triangle of stars|groups people by age|
computes compound interest|finds common elements of two lists|writes a log message with the time|
caches the results of another function
""".replace("\n", "").split("|")
OBJECTS = """
a bank account|a queue|a linked list|a shopping cart|a student|a car|a point in space|a matrix|a deck of cards|
a timer|a binary tree|a phone book|an invoice|an employee|a temperature sensor|a recipe|a calendar entry|a playlist|
a rectangle|a chess board|a parking garage|an order|a blog post|a weather report|a graph
""".replace("\n", "").split("|")
SENTENCES = """
The train to the coast leaves at half past eight.|My sister works in a hospital near the station.|
We have been looking for a new flat since March.|The soup tastes better with a little salt.|
Please close the door when you leave the room.|The children play in the garden until it gets dark.|
He bought a red coat and a pair of warm shoes.|The shop on the corner sells newspapers and fruit.|
Nobody knew who had written the letter.|The old bridge will be repaired next summer.|
She learned to swim when she was five years old.|Our meeting was moved to Thursday morning.|
The cat sleeps on the kitchen chair all day.|There is a small lake behind the school.|
It rained so hard that the streets were empty.|I would like a table for two near the window.|
The teacher asked us to read the first chapter.|The price of coffee went up again this year.|
A boy in a yellow jacket waved at the ferry.|The lights went out in the middle of the film.
""".replace("\n", "").split("|")
COPIES = (
    'Repeat this sentence {n} times: "{s}"', "Copy this text word for word, twice:\n\n{s} {r}",
    "Write this text again:\n\n{s} {r} {q}", "Repeat each line twice.\n\n{s}\n{r}\n{q}",
    "Copy this list {n} times:\n\n1. {t}\n2. {u}\n3. {s}",
)  # fmt: skip
REWRITES = (
    'Translate into {l}: "{s} {r}"', 'Translate this into {l}, please: "{s}"',
    "Correct the mistakes in this text: {s} {r}", "Make this text more formal: {s} {r}",
    "Write this in the past tense: {s} {r}", "Summarise in one sentence: {s} {r} {q}",
    "Go on with this text: {s} {r}",
)  # fmt: skip
LANGUAGES = ("French", "Spanish", "German", "Italian", "Portuguese")
EDITS = (
    "Rename the function `{a}` to `{b}` in this code and write all of it again.\n\n```python\n{f}\n```",
    "Add a docstring to this code and write it again.\n\n```python\n{f}\n```",
    "Add type hints to this code.\n\n```python\n{f}\n```",
)
NAMES = ("total", "scale", "area", "shift", "ratio", "count", "longest", "clean", "middle", "price")
BODIES = (
    "def {a}(values):\n    result = 0\n    for value in values:\n        result += value\n    return result",
    "def {a}(width, height):\n    if width < 0 or height < 0:\n        return 0\n    return width * height",
    "def {a}(words):\n    best = ''\n    for word in words:\n        if len(word) > len(best):\n"
    "            best = word\n"
    "    return best",
    "def {a}(text):\n    return text.strip().lower()\n\n\nprint({a}('  Hello '))",
    "def {a}(a, b):\n    if b == 0:\n        return None\n    return a / b\n\n\nfor i in range(5):\n    "
    "print({a}(10, i))",
)

# Of ten requests, how many are of which kind.
MIX = ((CHAT, 5), (HELP, 3), (PROSE, 3), (LISTS, 2), (CODE, 3), (COPIES, 1), (REWRITES, 2), (EDITS, 1))


def requests(n: int, seed: int) -> list[str]:
    """Texts of n requests, different ones as far as they last; of each kind as MIX says."""
    rng = random.Random(seed)
    kinds = [templates for templates, share in MIX for _ in range(share)]
    made: dict[str, None] = {}
    for _ in range(20 * n):
        if len(made) == n:
            break
        made[_filled(rng.choice(rng.choice(kinds)), rng)] = None
    return list(made)


def _filled(template: str, rng: random.Random) -> str:
    t, u = rng.sample(TOPICS, 2)
    s, r, q = rng.sample(SENTENCES, 3)
    a, b = rng.sample(NAMES, 2)
    text = template.format(
        t=t, u=u, s=s, r=r, q=q, a=a, b=b, n=rng.randint(2, 8), p=_one(PROBLEMS, rng), c=_one(DOES, rng),
        o=_one(OBJECTS, rng), l=_one(LANGUAGES, rng), f=_one(BODIES, rng).format(a=a),
    )  # fmt: skip
    return text[0].upper() + text[1:]


def _one(texts: Sequence[str], rng: random.Random) -> str:
    return rng.choice(texts)
