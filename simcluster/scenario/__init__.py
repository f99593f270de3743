"""The scenario: an immutable, validated document, its rules, and its conversion to planning inputs."""
