"""What people ask: values for the question marks of their text, and answers in the forms that Arrow has."""
