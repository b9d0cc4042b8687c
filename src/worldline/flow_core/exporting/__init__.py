"""Flow domains in forms that others read: JSON Schema, OpenAPI, tools of models, diagrams, text. All of it is pure."""
