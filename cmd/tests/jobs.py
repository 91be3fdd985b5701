"""Random jobs from the schema of the job file, and YAML as its version 1.2 reads it."""
import copy
import json
import re

import yaml

# PyYAML reads YAML 1.1, where 1e-3 is a text and `no` is false; editors and dptrain read 1.2's core schema.
CORE = [
    ("null", r"^(~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?[0-9]+$", list("-+0123456789")),
    ("float", r"^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$", list("-+.0123456789")),
]


class Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {}


Loader.add_constructor("tag:yaml.org,2002:int", lambda self, node: int(node.value))
Loader.add_constructor("tag:yaml.org,2002:float", lambda self, node: float(node.value))
for name, pattern, first in CORE:
    Loader.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(pattern), first)


def load(text):
    return yaml.load(text, Loader)


def scalar(value):
    if not isinstance(value, str):
        return json.dumps(value)
    plain = re.fullmatch(r"[A-Za-z0-9_.+]([A-Za-z0-9_./*+ -]*[A-Za-z0-9_./*+-])?", value)
    return value if plain and load(value) == value else json.dumps(value)


def dump(value):
    """In flow style; texts stay plain where they can."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{scalar(k)}: {dump(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(dump, value)) + "]"
    return scalar(value)


TIMES = ["never", "1 epoch", "2 epochs", "0.5 epochs", ".5 epoch", "1e1 epochs", "50 steps", "1 step", "3. steps",
         "+4 steps", "007steps", "10 min", "2 h", "30 s", "1.5 hours", "3e2 s"]
WORDS = ["auto", "null word", "x", "", "adam", "relu", "0 steps", "-1 epoch", "1.5 steps", "5 s ", "epoch", "soon"]


def number(schema, rng):
    low, high = schema.get("minimum", -1e6), schema.get("maximum", 1e6)
    pick = rng.choice([low, high, rng.uniform(low, min(high, low + 100))])
    whole = "integer" in schema["type"]
    return int(min(max(pick, low), high)) if whole or (pick == int(pick) and low <= int(pick) <= high) else pick


def table(schema, rng, given):
    job = dict(given)
    for key, inner in schema["properties"].items():
        if inner is not True and (key in schema.get("required", []) or rng.random() < 0.4):
            job[key] = value(inner, rng)
    return job


def variant(schema, rng):
    if rng.random() < 0.2 and schema["else"]["enum"]:
        return rng.choice(schema["else"]["enum"])
    one = rng.choice(schema["then"]["allOf"])
    return table(one["then"], rng, {"type": one["if"]["properties"]["type"]["enum"][0]})


def layer(schema, rng):
    if rng.random() < 0.3:
        return rng.choice(schema["else"]["enum"])
    name, inner = rng.choice(list(schema["then"]["properties"].items()))
    return {name: value(inner["else"], rng) if rng.random() < 0.3 else table(inner["then"], rng, {})}


def value(schema, rng):
    """One that the schema accepts."""
    if "anyOf" in schema:
        return value(rng.choice(schema["anyOf"]), rng)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if "allOf" in schema.get("then", {}):
        return variant(schema, rng)
    if "then" in schema:  # a map, or what one of its keys may be
        return value(schema[rng.choice(["then", "else"])], rng)
    if "properties" in schema:
        return table(schema, rng, {})
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    kind = rng.choice(kinds)
    if "pattern" in schema:
        return rng.choice([t for t in TIMES if re.search(schema["pattern"], t)])
    if kind == "object" and "additionalProperties" in schema:
        return {name: value(schema["additionalProperties"], rng) for name in rng.sample(["a", "b c", "0", "é"], rng.randint(1, 3))}
    if kind == "object":
        return table(schema, rng, {})
    if kind == "array":
        items = schema["items"]
        least = schema.get("minItems", 0)
        make = layer if "if" in items else value
        return [make(items, rng) for _ in range(rng.randint(least, schema.get("maxItems", least + 3)))]
    return {"null": lambda: None, "boolean": lambda: rng.random() < 0.5, "number": lambda: number(schema, rng),
            "integer": lambda: number(schema, rng), "string": lambda: rng.choice(["a", "b c", "d*.h5", "é"])}[kind]()


def expand(node, definitions, depth):
    """The schema with what its references name in their place; at some depth the simplest such list."""
    if isinstance(node, list):
        return [expand(inner, definitions, depth) for inner in node]
    if not isinstance(node, dict):
        return node
    for one in node.get("allOf", []):
        if "$ref" in one:
            if depth == 0:
                return {"enum": [["relu"], ["flatten"]]}
            return expand(definitions[one["$ref"].removeprefix("#/definitions/")], definitions, depth - 1)
    return {key: expand(inner, definitions, depth) for key, inner in node.items()}


def make(schema, rng):
    return table(schema, rng, {})


def places(node):
    """Every (container, key) below."""
    for key, inner in list(node.items() if isinstance(node, dict) else enumerate(node)):
        yield node, key
        if isinstance(inner, (dict, list)):
            yield from places(inner)


# No 32.0: a schema cannot tell it from 32.
VALUES = [None, True, False, 0, 1, -1, 7, 10**7, 10**17, 0.37, -2.5, 1e-3, 1e-35, 1e33 + 0.5, [], {}, [1, 2],
          [1, "x"], [0.5, None], ["a", "b"], {"type": "adam"}, {"a": 1}, {"relu": None}, *WORDS, *TIMES]


def spoil(job, rng):
    """Changes one thing, for the worse or not."""
    node, key = rng.choice(list(places(job)))
    change = rng.random()
    if change < 0.15:
        del node[key]
    elif change < 0.3 and isinstance(node, dict):
        node[rng.choice(["x", "lr", "type", "every", "outputs", "name"])] = node.pop(key)
    elif change < 0.4 and isinstance(node, dict):
        node["nmae"] = 1
    else:
        node[key] = copy.deepcopy(rng.choice(VALUES))
